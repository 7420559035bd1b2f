"""A really tensor-parallel language model on the processor: the small transformer, divided among processes.

Each rank is a process with one thread, a part of the heads and feed-forward layers (`shards`), and a limit of memory that the kernel
enforces (`memory_limit`). The server (`server`) has the ranks of one replica (`ranks`) and is not limited, so it says why a rank ended. As a
GPU service of degrees 1 and 2, one replica on two GPUs holds contexts for which two replicas on one GPU each have no memory.

Rules
1. All ranks sample for themselves, from equal logits: the sum of all shards is bit for bit equal on all. Answers that differ are an error.
2. A rank that lacks memory ends. Only with evidence is that reported as out of memory: the rank's own exit status, an allocation that
   failed as its last words, or a kill that the kernel counted. Any other end is a failure.
3. When one rank ends, all of its replica are ended and started again with the newest weights; requests wait meanwhile.

Needs PyTorch (1.13 or later, with gloo) and nothing else.
"""
