"""What fits on this machine and what does not, each with the command that mends it."""

from truncate_kit.doctor.diagnosis import diagnose
from truncate_kit.doctor.results import CudaVersions, Diagnosis, Finding, Processor, Provider, Requirement, Wish

__all__ = ["CudaVersions", "Diagnosis", "Finding", "Processor", "Provider", "Requirement", "Wish", "diagnose"]
