"""The energy counters of this machine: RAPL's of its processors and NVML's of its GPUs, where they can be read.

They count for the whole machine, whoever uses it. What cannot be read is left out and never estimated. Standard library
only, because the supervisor of a local task uses it. Sources: the kernel's page "Power Capping Framework", and NVML's
`nvmlDeviceGetTotalEnergyConsumption` (millijoules since the driver was loaded; Volta or newer).
"""

import ctypes
import glob
import os

RAPL_FOLDER = "/sys/class/powercap"
NVML_LIBRARY = "libnvidia-ml.so.1"


class EnergyMeter:
    """Adds up what the counters gain. RAPL's wrap around, at full load after some minutes: `read` must come before."""

    def __init__(self, rapl: str = RAPL_FOLDER, nvml: str = NVML_LIBRARY) -> None:
        # One zone for each processor package; its parts (intel-rapl:0:1) are in it.
        zones = glob.glob(os.path.join(rapl, "intel-rapl:*"))
        self._zones = [zone for zone in sorted(zones) if os.path.basename(zone).count(":") == 1]
        self._nvml = _opened(nvml)
        self._microjoules = {zone: _number(zone, "energy_uj") for zone in self._zones}
        self._range = {zone: _number(zone, "max_energy_range_uj") for zone in self._zones}
        self._gained = 0
        self._gpus = self._millijoules()

    def read(self) -> dict[str, float]:
        """Return the joules of `processors` and of `gpus` since the beginning; without those that cannot be read."""
        for zone, before in self._microjoules.items():
            now, wraps_at = _number(zone, "energy_uj"), self._range[zone]
            if before is None or now is None or wraps_at is None:
                self._microjoules = {}  # one package less would be no measurement of the machine
                break
            self._gained += now - before if now >= before else wraps_at - before + now
            self._microjoules[zone] = now
        found = {"processors": self._gained / 1e6} if self._microjoules else {}
        now, before = self._millijoules(), self._gpus
        if before and now and len(now) == len(before) and all(new >= old for new, old in zip(now, before, strict=True)):
            found["gpus"] = sum(new - old for new, old in zip(now, before, strict=True)) / 1e3
        return {name: round(joules, 3) for name, joules in found.items()}

    def _millijoules(self) -> list[int] | None:
        """Each GPU's counter; None if there is no GPU or one of them has no counter."""
        if self._nvml is None:
            return None
        number, counters = ctypes.c_uint(), list[int]()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(number)):
            return None
        for index in range(number.value):
            device, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
                return None
            if self._nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)):
                return None
            counters.append(energy.value)
        return counters or None


def _opened(library: str) -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL(library)
        return None if nvml.nvmlInit_v2() else nvml
    except (OSError, AttributeError):
        return None


def _number(zone: str, name: str) -> int | None:
    try:
        with open(os.path.join(zone, name), encoding="ascii") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return None
