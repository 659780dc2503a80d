"""`python -m services.verifier`: the verifier as a program."""

from adasd.rpc.verifier import VerifierService
from services.replica.hosting import ReplicaHost
from services.replica.program import run
from services.replica.traces import TracedVerifier
from services.tracing import OFF, Tracing
from services.verifier.servicer import VerifierServicer
from services.verifier.settings import VerifierSettings


def service(host: ReplicaHost, settings: VerifierSettings, tracing: Tracing) -> VerifierService:
    servicer = VerifierServicer(host, settings.max_candidates, settings.runs_ahead)
    return VerifierService(servicer if tracing is OFF else TracedVerifier(servicer, tracing))


if __name__ == "__main__":
    run(VerifierSettings, "verifier", service)
