"""Stratus: an always-on gateway between people and LLM agents, on any number of replicas and one PostgreSQL."""
