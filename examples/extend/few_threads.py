"""A compute backend of your own: this machine, with few threads in the libraries of each process."""

from dataclasses import dataclass, replace

from resources.compute.backends import BackendPart
from resources.compute.local import LocalBackend


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Threads of OpenMP in each process."""

    threads: int = 1


class FewThreads(LocalBackend):
    """Pedigree's local backend with another environment; a backend for a cluster has six functions of its own."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings

    def submit(self, task):
        return super().submit(replace(task, environment={**task.environment, **self.added()}))

    def added(self):
        return {"OMP_NUM_THREADS": str(self.settings.threads)}


backend = BackendPart(make=FewThreads, settings=Settings, most_nodes=1)
