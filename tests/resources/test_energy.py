"""The energy of an attempt: what the machine's counters gained, and nothing where they cannot be read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from resources.compute.energy import EnergyMeter

# The four calls of NVML that are used, for two GPUs whose counters gain 1.5 J between two looks.
NVML = """
static unsigned long long used = 7000;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(index + 1UL); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    if (device == (void *)2 && LACKS) return 3;
    *millijoules = used += 750; return 0;
}
"""


def zone(folder, name, microjoules, wraps_at=1_000_000_000):
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "energy_uj").write_text(f"{microjoules}\n")
    (place / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    return place


def test_packages_are_added_up_over_a_wrap_and_their_parts_are_not_counted_twice(tmp_path):
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        zone(tmp_path, name, 5_000_000)
    meter = EnergyMeter(str(tmp_path), "no such library")
    zone(tmp_path, "intel-rapl:0", 999_000_000)
    assert meter.read() == {"processors": 994.0}
    zone(tmp_path, "intel-rapl:0", 4_000_000)  # past its end
    zone(tmp_path, "intel-rapl:1", 6_000_000)
    zone(tmp_path, "intel-rapl:0:0", 900_000_000)
    assert meter.read() == {"processors": 1000.0}


def test_a_counter_that_cannot_be_read_is_absent_even_if_another_one_can(tmp_path):
    zone(tmp_path, "intel-rapl:0", 5_000_000)
    (zone(tmp_path, "intel-rapl:1", 5_000_000) / "energy_uj").write_text("")  # as without its right
    meter = EnergyMeter(str(tmp_path), "no such library")
    zone(tmp_path, "intel-rapl:0", 6_000_000)
    assert meter.read() == {}
    assert EnergyMeter(str(tmp_path / "nothing"), "no such library").read() == {}


@pytest.mark.parametrize(("lacks", "found"), [(0, {"gpus": 3.0}), (1, {})])
def test_gpus_count_by_nvml_or_not_at_all_if_one_has_no_counter(tmp_path, lacks, found):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "nvml.so"
    subprocess.run([compiler, "-shared", "-fPIC", f"-DLACKS={lacks}", "-o", library, tmp_path / "nvml.c"], check=True)
    assert EnergyMeter(str(tmp_path / "nothing"), str(library)).read() == found
