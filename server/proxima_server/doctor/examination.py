"""All checks, in the order in which a person would mend what they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pynvml

from proxima_server.doctor import combinations, cpu, gpus, limits, model, packages
from proxima_server.doctor.finding import Check, Finding, warning
from proxima_server.doctor.subject import Subject

CHECKS: Mapping[str, Check] = {
    "packages": packages.check_packages,
    "driver": gpus.check_driver,
    "gpus": gpus.check_gpus,
    "cpu": cpu.check_cpu,
    "memory": cpu.check_memory,
    "preload": cpu.check_preload,
    "compiler": packages.check_compiler,
    "shm": limits.check_shm,
    "open files": limits.check_open_files,
    "processes": limits.check_processes,
    "address space": limits.check_address_space,
    "temporary": limits.check_temporary_folder,
    "disk": model.check_disk,
    "ports": limits.check_ports,
    "model": model.check_model,
    "combinations": combinations.check_combinations,
}


def examine(subject: Subject) -> Iterator[tuple[str, Finding]]:
    """Name of the check and finding, at least one for each check."""
    for name, check in CHECKS.items():
        try:
            findings = list(check(subject))
        except (OSError, pynvml.NVMLError) as error:
            # What a hardened machine hides, or a driver does not tell, is no reason to say nothing of the rest.
            findings = [warning(f"cannot be examined: {error}", "look at it by hand")]
        for finding in findings:
            yield name, finding
