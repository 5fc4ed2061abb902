"""The policies that Proxima is compared with, one file each, written from their published descriptions.

All work in vLLM's mixed steps on vLLM's blocks: what a rule says about admission, order and victims is theirs, the rest
of the engine is the same for all arms.
"""
