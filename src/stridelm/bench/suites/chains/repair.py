"""A factory: an alarm of a machine is explained, measured and handed to a technician."""

from operator import sub

from stridelm.bench.suites.chain import Call, Chain, Step, Tool, calculate, look_up

_MACHINES = {"north press": {"machine_id": "P-31"}, "south press": {"machine_id": "P-34"}}
_ALARMS = {"P-31": {"alarm_ids": ["A-871", "A-865"]}, "P-34": {"alarm_ids": ["A-868"]}}
_CAUSES = {
    "A-871": {"code": "E-44", "sensor_id": "N-6"},
    "A-865": {"code": "E-17", "sensor_id": "N-6"},
    "A-868": {"code": "E-17", "sensor_id": "N-8"},
}
_CODES = {
    "E-44": {"meaning": "bearing too hot", "part_id": "G-203"},
    "E-17": {"meaning": "oil filter clogged", "part_id": "G-118"},
}
_SENSORS = {"N-6": {"temperature": 96, "limit": 80}, "N-8": {"temperature": 71, "limit": 80}}
_PARTS = {
    "G-203": {"name": "main bearing", "shelf": "K-12", "left": 2},
    "G-118": {"name": "oil filter", "shelf": "K-05", "left": 9},
}
_TECHNICIANS = {
    "P-31": {"technician_id": "Y-9", "free_at": "14:00"},
    "P-34": {"technician_id": "Y-4", "free_at": "09:30"},
}
_JOBS = {
    f"{technician}, {machine}, {part}": {"job_id": f"J-{machine[2:]}{part[2:]}"}
    for technician in ("Y-9", "Y-4")
    for machine in _ALARMS
    for part in _PARTS
}

_TOOLS = {
    "find_machine": Tool("the id of a machine", ("name",), lambda name: look_up(_MACHINES, name)),
    "list_alarms": Tool(
        "the ids of a machine's alarms, newest first", ("machine_id",), lambda machine_id: look_up(_ALARMS, machine_id)
    ),
    "get_alarm": Tool(
        "the code of an alarm, and the sensor that raised it",
        ("alarm_id",),
        lambda alarm_id: look_up(_CAUSES, alarm_id),
    ),
    "explain_code": Tool(
        "what a code means, and the part that it is about", ("code",), lambda code: look_up(_CODES, code)
    ),
    "read_sensor": Tool(
        "the temperature at a sensor, and its limit", ("sensor_id",), lambda sensor_id: look_up(_SENSORS, sensor_id)
    ),
    "excess": Tool(
        "temperature minus limit",
        ("temperature", "limit"),
        lambda temperature, limit: calculate("degrees", sub, temperature, limit),
    ),
    "find_part": Tool(
        "where a part lies, and how many are left", ("part_id",), lambda part_id: look_up(_PARTS, part_id)
    ),
    "find_technician": Tool(
        "the technician of a machine, and when he or she is free",
        ("machine_id",),
        lambda machine_id: look_up(_TECHNICIANS, machine_id),
    ),
    "open_job": Tool(
        "let a technician change a part of a machine",
        ("technician_id", "machine_id", "part_id"),
        lambda technician_id, machine_id, part_id: look_up(_JOBS, technician_id, machine_id, part_id),
    ),
    "answer_alarm": Tool(
        "note at an alarm how hot it was and which job is about it",
        ("alarm_id", "degrees", "job_id"),
        lambda alarm_id, degrees, job_id: {"answered": True},
    ),
}

_STEPS = (
    Step("Find the id of the machine called north press.", Call("find_machine", {"name": "north press"})),
    Step("List the alarms of this machine.", Call("list_alarms", {"machine_id": "P-31"})),
    Step("Get the newest of these alarms.", Call("get_alarm", {"alarm_id": "A-871"})),
    Step("Explain the code of this alarm.", Call("explain_code", {"code": "E-44"})),
    Step("Read the sensor of the alarm.", Call("read_sensor", {"sensor_id": "N-6"})),
    Step(
        "Compute the excess from the temperature and the limit of the sensor.",
        Call("excess", {"temperature": 96, "limit": 80}),
    ),
    Step("Find the part that the code is about.", Call("find_part", {"part_id": "G-203"})),
    Step("Find the technician of the machine.", Call("find_technician", {"machine_id": "P-31"})),
    Step(
        "Open a job for the technician to change this part of the machine.",
        Call("open_job", {"technician_id": "Y-9", "machine_id": "P-31", "part_id": "G-203"}),
    ),
    Step(
        "Answer the alarm with the degrees of the excess and the job.",
        Call("answer_alarm", {"alarm_id": "A-871", "degrees": 16, "job_id": "J-31203"}),
    ),
)

CHAIN = Chain(
    "repair",
    _TOOLS,
    example=Step("Read the sensor N-8.", Call("read_sensor", {"sensor_id": "N-8"})),
    steps=_STEPS,
)
