"""Agents: their files, the models behind them, and the tools they may call."""
