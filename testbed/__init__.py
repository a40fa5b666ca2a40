"""What tests and campaigns stand on: replica sets, fakes of platforms and providers, proxies, chaos and invariants."""

from testbed.replicas import ReplicaSet

__all__ = ["ReplicaSet"]
