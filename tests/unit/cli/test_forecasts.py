import pytest

from meshnet.cli.clusterplan import network_of
from meshnet.cli.forecasts import print_links, print_predictions, ran_line, step_cell
from meshnet.tracker import messages as msg
from meshnet.tracker.forecast import Link
from meshnet.tracker.measurements import LinkReport, RunsStatus, Told
from meshnet.tracker.speeds import Hop

DESK, LAPTOP = "a" * 16, "b" * 16
RAN = RunsStatus(
    runs=3,
    token_seconds=0.025,
    predicted_token_seconds=0.02,
    first_seconds=0.5,
    predicted_first_seconds=0.45,
)


def machine(node_id: str, name: str, **more: object) -> msg.MachineStatus:
    values: dict[str, object] = {
        "node_id": node_id,
        "name": name,
        "state": msg.MachineState.READY,
        "drained": False,
        "silent_seconds": 0.0,
    }
    return msg.MachineStatus.model_validate(values | more)


def links(*reports: tuple[str | None, float, int]) -> tuple[LinkReport, ...]:
    return tuple(
        LinkReport(node_id=node, round_trip_seconds=trip, bytes_per_second=rate)
        for node, trip, rate in reports
    )


MACHINES = [
    machine(DESK, "desk", links=links((None, 0.001, 0), (LAPTOP, 0.02, 1 << 20))),
    machine(LAPTOP, "laptop", way=msg.Way.RELAYED),
]


def test_what_generations_took_stands_beside_what_was_predicted_of_them():
    expected = (
        "40.0 tokens/s (50.0 predicted), first token after 0.50 s (0.45 predicted), median of 3"
    )
    assert ran_line(RAN) == expected
    short = RAN.model_copy(update={"first_seconds": 0.0, "predicted_first_seconds": 0.0})
    assert ran_line(short) == "40.0 tokens/s (50.0 predicted), median of 3"


def test_a_models_route_is_shown_as_predicted_and_as_measured(capsys):
    predicted = RunsStatus(
        runs=0, token_seconds=0.0, predicted_token_seconds=0.02, predicted_first_seconds=0.45
    )
    model = msg.ModelStatus(
        digest="sha256:" + "1" * 64,
        name="m",
        total_layers=2,
        epoch=1,
        ready=True,
        predicted=predicted,
    )
    print_predictions(model)
    print_predictions(model.model_copy(update={"predicted": None, "ran": RAN}))
    first, second = capsys.readouterr().out.splitlines()
    assert " ".join(first.split()) == "predicted 50.0 tokens/s, first token of 128 after 0.45 s"
    assert second.split()[:2] == ["measured", "40.0"]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (None, ""),
        (Told(), "-"),
        (Told(predicted_seconds=0.01), "- (10.0)"),
        (Told(predicted_seconds=0.01, measured_seconds=0.0123), "12.3 (10.0)"),
        (Told(measured_seconds=0.0123), "12.3"),
    ],
)
def test_a_step_is_shown_as_measured_and_as_predicted(step, told):
    assert step_cell(machine(DESK, "desk", step=step)) == told


def test_links_are_listed_with_who_measured_them_and_which_are_relayed(capsys):
    print_links(MACHINES)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["desk", "tracker", "1.00", "", ""] in lines
    assert ["desk", "laptop", "20.00", "1.0 MiB/s", "relayed"] in lines
    print_links([machine(DESK, "desk")])
    assert capsys.readouterr().out == ""


def test_a_plan_has_the_links_that_were_measured():
    network = network_of(MACHINES, Link(0.5, 1e6))
    assert network.hop(0, 1) == network.hop(1, 0) == Hop(0.01, 1 << 20)
    assert network.matrix(2, 0)[1, 0] == pytest.approx(0.01)
    assert network_of(MACHINES[1:], Link(0.5, 1e6)).measured == {}
