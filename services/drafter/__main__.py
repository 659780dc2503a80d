"""`python -m services.drafter`: the drafter as a program."""

from adasd.rpc.drafter import DrafterService
from services.drafter.servicer import DrafterServicer
from services.drafter.settings import DrafterSettings
from services.replica.hosting import ReplicaHost
from services.replica.program import run


def service(host: ReplicaHost, settings: DrafterSettings) -> DrafterService:
    return DrafterService(DrafterServicer(host, settings.max_candidates))


if __name__ == "__main__":
    run(DrafterSettings, "drafter", "draft", service)
