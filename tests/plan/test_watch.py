"""A caller follows joint at work, and stops it: it then returns the best plan that it has."""

from rowtier import Cluster, make_plan
from rowtier.plan.verify import verify
from rowtier.synth.rm import rm_profile


def _problem() -> tuple[object, Cluster]:
    return rm_profile("rm2", 0, False), Cluster.preset("recshard-16")


def test_progress_rises_to_the_end() -> None:
    profile, cluster = _problem()
    seen: list[float] = []
    make_plan(profile, cluster, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 2


def test_a_stopped_plan_is_whole_and_no_better_than_one_that_took_its_time() -> None:
    profile, cluster = _problem()
    whole, stopped = make_plan(profile, cluster), make_plan(profile, cluster, stop=lambda: True)
    assert verify(stopped).holds
    assert stopped.certificate is not None
    assert whole.certificate is not None
    assert stopped.certificate.objective >= whole.certificate.objective
    assert stopped.certificate.bound == whole.certificate.bound
