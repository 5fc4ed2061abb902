"""The lab: the engine's own scheduler in virtual time, under recorded or made-up traffic."""
