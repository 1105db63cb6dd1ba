"""A travel desk: a flight and a room for somebody's next meeting."""

from operator import mul

from stridelm.bench.suites.chain import Call, Chain, Step, Tool, calculate, look_up

_TRAVELLERS = {"Nadia Okafor": {"traveller_id": "T-204"}, "Juri Salo": {"traveller_id": "T-219"}}
_MEETINGS = {"T-204": {"meeting_ids": ["M-361", "M-388"]}, "T-219": {"meeting_ids": ["M-374"]}}
_PLACES = {
    "M-361": {"city": "Porto", "day": "Tuesday", "nights": 2},
    "M-388": {"city": "Turku", "day": "Monday", "nights": 1},
    "M-374": {"city": "Porto", "day": "Friday", "nights": 3},
}
_CONNECTIONS = {
    "Porto, Tuesday": {"flight_id": "F-77", "seats_left": 0, "next_flight_id": "F-79"},
    "Porto, Friday": {"flight_id": "F-77", "seats_left": 6, "next_flight_id": "F-79"},
    "Turku, Monday": {"flight_id": "F-18", "seats_left": 3, "next_flight_id": "F-20"},
}
_FLIGHTS = {
    "F-77": {"departs": "07:15", "fare": 96},
    "F-79": {"departs": "09:40", "fare": 118},
    "F-18": {"departs": "06:50", "fare": 142},
    "F-20": {"departs": "12:05", "fare": 131},
}
_SEATS = {
    f"{flight}, {traveller}": {"seat_id": f"S-{flight[2:]}{traveller[2:]}"}
    for flight in _FLIGHTS
    for traveller in _MEETINGS
}
_HOTELS = {"Porto": {"hotel_id": "H-52", "rate": 65}, "Turku": {"hotel_id": "H-60", "rate": 88}}
_ROOMS = {"H-52": {"room_id": "R-906"}, "H-60": {"room_id": "R-115"}}

_TOOLS = {
    "find_traveller": Tool("the id of a traveller", ("name",), lambda name: look_up(_TRAVELLERS, name)),
    "list_meetings": Tool(
        "the ids of a traveller's meetings, the next one first",
        ("traveller_id",),
        lambda traveller_id: look_up(_MEETINGS, traveller_id),
    ),
    "get_meeting": Tool(
        "where and when a meeting is, and for how many nights",
        ("meeting_id",),
        lambda meeting_id: look_up(_PLACES, meeting_id),
    ),
    "find_flight": Tool(
        "the first flight to a city on a day, its free seats, and the flight after it",
        ("city", "day"),
        lambda city, day: look_up(_CONNECTIONS, city, day),
    ),
    "get_flight": Tool(
        "when a flight departs, and its fare", ("flight_id",), lambda flight_id: look_up(_FLIGHTS, flight_id)
    ),
    "book_seat": Tool(
        "a seat for a traveller on a flight",
        ("flight_id", "traveller_id"),
        lambda flight_id, traveller_id: look_up(_SEATS, flight_id, traveller_id),
    ),
    "find_hotel": Tool("a hotel in a city, and its rate for a night", ("city",), lambda city: look_up(_HOTELS, city)),
    "hotel_cost": Tool(
        "rate times nights", ("rate", "nights"), lambda rate, nights: calculate("cost", mul, rate, nights)
    ),
    "reserve_room": Tool(
        "a room in a hotel at this cost", ("hotel_id", "cost"), lambda hotel_id, cost: look_up(_ROOMS, hotel_id)
    ),
    "send_plan": Tool(
        "tell a traveller of a seat and a room",
        ("traveller_id", "seat_id", "room_id"),
        lambda traveller_id, seat_id, room_id: {"sent": True},
    ),
}

_STEPS = (
    Step("Find the id of the traveller Nadia Okafor.", Call("find_traveller", {"name": "Nadia Okafor"})),
    Step("List the meetings of this traveller.", Call("list_meetings", {"traveller_id": "T-204"})),
    Step("Get the next of these meetings.", Call("get_meeting", {"meeting_id": "M-361"})),
    Step(
        "Find a flight to the city of the meeting on its day.",
        Call("find_flight", {"city": "Porto", "day": "Tuesday"}),
    ),
    Step("This flight is full. Get the flight after it.", Call("get_flight", {"flight_id": "F-79"})),
    Step(
        "Book a seat on that flight for the traveller.",
        Call("book_seat", {"flight_id": "F-79", "traveller_id": "T-204"}),
    ),
    Step("Find a hotel in the city of the meeting.", Call("find_hotel", {"city": "Porto"})),
    Step(
        "Compute the cost of the hotel from its rate and the nights of the meeting.",
        Call("hotel_cost", {"rate": 65, "nights": 2}),
    ),
    Step("Reserve a room in this hotel at this cost.", Call("reserve_room", {"hotel_id": "H-52", "cost": 130})),
    Step(
        "Send the traveller the plan with the seat and the room.",
        Call("send_plan", {"traveller_id": "T-204", "seat_id": "S-79204", "room_id": "R-906"}),
    ),
)

CHAIN = Chain(
    "trip",
    _TOOLS,
    example=Step("Find a hotel in Turku.", Call("find_hotel", {"city": "Turku"})),
    steps=_STEPS,
)
