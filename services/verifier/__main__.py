"""`python -m services.verifier`: the verifier as a program, with a drafter beside it if it is told of one."""

from functools import partial

from adasd.rpc.drafter import DrafterService
from adasd.rpc.verifier import VerifierService
from adasd.runtime.loading import load_model
from services.replica.drafting import DrafterServicer
from services.replica.hosting import ReplicaHost
from services.replica.metrics import ReplicaMetrics
from services.replica.program import Offer, Program, hosting, run
from services.replica.traces import TracedDrafter, TracedVerifier
from services.tracing import OFF
from services.verifier.servicer import VerifierServicer
from services.verifier.settings import VerifierSettings


def offering(program: Program, settings: VerifierSettings) -> Offer:
    if settings.draft is None:
        return Offer([_verifier(program, settings, None)])
    metrics = ReplicaMetrics("drafter", program.registry)
    host = hosting(program.device, settings, settings.draft, settings.drafting, metrics)
    servicer, tracing = DrafterServicer(host, settings.max_candidates), program.tracing
    drafter = servicer if tracing is OFF else TracedDrafter(servicer, tracing)
    loader = partial(load_model, settings.draft, "draft", settings.drafting)
    load = partial(host.load, loader, "draft", settings.max_vocabulary, program.host)
    return Offer([_verifier(program, settings, host), DrafterService(drafter)], [load])


def _verifier(program: Program, settings: VerifierSettings, beside: ReplicaHost | None) -> VerifierService:
    servicer = VerifierServicer(program.host, settings.max_candidates, settings.runs_ahead, beside)
    return VerifierService(servicer if program.tracing is OFF else TracedVerifier(servicer, program.tracing))


if __name__ == "__main__":
    run(VerifierSettings, "verifier", offering)
