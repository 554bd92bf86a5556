"""Horovod: its rendezvous, and learners for the frameworks it trains with."""
