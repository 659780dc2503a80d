"""`python -m services.verifier`: the verifier as a program."""

from adasd.rpc.verifier import VerifierService
from services.replica.hosting import ReplicaHost
from services.replica.program import run
from services.verifier.servicer import VerifierServicer
from services.verifier.settings import VerifierSettings


def service(host: ReplicaHost, settings: VerifierSettings) -> VerifierService:
    return VerifierService(VerifierServicer(host, settings.max_candidates))


if __name__ == "__main__":
    run(VerifierSettings, "verifier", "target", service)
