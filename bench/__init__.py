"""What Stratus costs: workloads on a durable PostgreSQL, each with a reference measured in the same run. `make bench`."""
