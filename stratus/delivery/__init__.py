"""The room that owns channels: it polls their platforms and makes the calls that the outbox asks for."""
