"""A shop: a customer's order cannot be delivered from its warehouse, so another one delivers, with a voucher."""

from operator import mul

from stridelm.bench.suites.chain import Call, Chain, Step, Tool, calculate, look_up

_CUSTOMERS = {"Mara Lind": {"customer_id": "C-482"}, "Ivo Brandt": {"customer_id": "C-517"}}
_ORDERS = {"C-482": {"order_ids": ["O-9137", "O-9052"]}, "C-517": {"order_ids": ["O-9140"]}}
_LINES = {
    "O-9137": {"item_id": "I-55", "quantity": 3, "warehouse_id": "W-7"},
    "O-9052": {"item_id": "I-12", "quantity": 1, "warehouse_id": "W-7"},
    "O-9140": {"item_id": "I-12", "quantity": 2, "warehouse_id": "W-9"},
}
_ITEMS = {"I-55": {"name": "desk lamp", "price": 24}, "I-12": {"name": "coat hook", "price": 6}}
_STOCK = {
    "I-55, W-7": {"in_stock": 0, "other_warehouse_id": "W-9"},
    "I-55, W-9": {"in_stock": 40},
    "I-12, W-7": {"in_stock": 15},
    "I-12, W-9": {"in_stock": 2},
}
_VOUCHERS = {"O-9137": {"voucher": "V-310"}, "O-9052": {"voucher": "V-311"}, "O-9140": {"voucher": "V-312"}}
_COURIERS = {"W-7": {"courier_id": "D-18"}, "W-9": {"courier_id": "D-21"}}
_BOOKINGS = {
    f"{courier}, {order}": {"booking_id": f"B-{order[2:]}{courier[2:]}", "day": "Thursday"}
    for courier in ("D-18", "D-21")
    for order in _LINES
}

_TOOLS = {
    "find_customer": Tool(
        "the id of a customer",
        ("name",),
        lambda name: look_up(_CUSTOMERS, name),
    ),
    "list_orders": Tool(
        "the ids of a customer's orders, newest first",
        ("customer_id",),
        lambda customer_id: look_up(_ORDERS, customer_id),
    ),
    "get_order": Tool(
        "what was ordered, how many of it, and from which warehouse",
        ("order_id",),
        lambda order_id: look_up(_LINES, order_id),
    ),
    "get_item": Tool("the name and the price of an item", ("item_id",), lambda item_id: look_up(_ITEMS, item_id)),
    "check_stock": Tool(
        "how many of an item a warehouse has, and who else has some",
        ("item_id", "warehouse_id"),
        lambda item_id, warehouse_id: look_up(_STOCK, item_id, warehouse_id),
    ),
    "total_price": Tool(
        "price times quantity",
        ("price", "quantity"),
        lambda price, quantity: calculate("total", mul, price, quantity),
    ),
    "find_courier": Tool(
        "the courier of a warehouse", ("warehouse_id",), lambda warehouse_id: look_up(_COURIERS, warehouse_id)
    ),
    "book_courier": Tool(
        "let a courier deliver an order",
        ("courier_id", "order_id"),
        lambda courier_id, order_id: look_up(_BOOKINGS, courier_id, order_id),
    ),
    "make_voucher": Tool(
        "a voucher for an order of this total",
        ("order_id", "total"),
        lambda order_id, total: look_up(_VOUCHERS, order_id),
    ),
    "send_message": Tool(
        "tell a customer of a booking and a voucher",
        ("customer_id", "booking_id", "voucher"),
        lambda customer_id, booking_id, voucher: {"sent": True},
    ),
}

_STEPS = (
    Step("Find the id of the customer Mara Lind.", Call("find_customer", {"name": "Mara Lind"})),
    Step("List the orders of this customer.", Call("list_orders", {"customer_id": "C-482"})),
    Step("Get the newest of these orders.", Call("get_order", {"order_id": "O-9137"})),
    Step("Get the item that was ordered.", Call("get_item", {"item_id": "I-55"})),
    Step(
        "Check the stock of this item in the warehouse of the order.",
        Call("check_stock", {"item_id": "I-55", "warehouse_id": "W-7"}),
    ),
    Step("Find the courier of the other warehouse.", Call("find_courier", {"warehouse_id": "W-9"})),
    Step("Book this courier for the order.", Call("book_courier", {"courier_id": "D-21", "order_id": "O-9137"})),
    Step(
        "Compute the total price from the price of the item and the quantity of the order.",
        Call("total_price", {"price": 24, "quantity": 3}),
    ),
    Step("Make a voucher for the order with this total.", Call("make_voucher", {"order_id": "O-9137", "total": 72})),
    Step(
        "Send the customer a message with the booking and the voucher.",
        Call("send_message", {"customer_id": "C-482", "booking_id": "B-913721", "voucher": "V-310"}),
    ),
)

CHAIN = Chain(
    "order",
    _TOOLS,
    example=Step("Find the courier of the warehouse W-7.", Call("find_courier", {"warehouse_id": "W-7"})),
    steps=_STEPS,
)
