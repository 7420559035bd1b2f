"""GPUs: chunks that actions hold, and services that stay in GPU memory between actions.

Theory of operation (paper §5.3, evict-on-execution). Many services share few GPUs. An action is
granted a *chunk*; if its service is not in the memory of that chunk, the service is restored from
host memory, and others are evicted from there, but only as many as it takes. After the action the
service stays *cached* until somebody else needs the memory. Eviction writes nothing back: the copy
in host memory does not change.

Rules
1. A GPU is *free*, *granted*, or *unhealthy*. What is cached on free GPUs does not
   make them less free: it can always be evicted. So what fits depends on holders and health alone.
2. Free GPUs form the largest aligned blocks of 1, 2, 4, 8 they can. Blocks are never stored: they
   are read from 8 bits per cell, so splitting and merging cannot go wrong or leak (`buddies`).
3. A chunk comes from the smallest block that suffices; among those places the one that caches the
   service, then one with room in memory, then the one whose eviction costs least, then the lowest.
   A place that has an unhealthy GPU is no place, and the next one is tried. A grant goes to a free
   chunk that caches the service even in a larger block; a reservation need not (`at_home`).
4. What a service costs to evict is asked of a function; by default it is its last use (LRU), and
   next to nothing for one that was brought ahead (rule 8) and called by nobody since. A place costs as much as the costliest service on it; services that are `wanted` cost more than any.
5. Choosing a chunk evicts nobody: `ChunkLedger.occupy` does, when a service really goes there. So
   an allocation that is taken back leaves no trace, and cycles may reserve and release at will.
6. A service is evicted whole, from all GPUs it is on. Services share a GPU while their declared
   memory fits; one that declares none takes it whole.
7. A granted chunk has one holder, unless its service takes several requests at once (its engine
   batches them): then others `join`, up to as many as it declares (`seats`). They hold the chunk
   together, and it counts once. It is free when the last of them has gone.
8. A service may be *brought* to a free chunk where there is room before anybody is granted it: nobody
   leaves, and the chunk stays free. It is `coming` until its node says that it is there; a grant may
   go there before, but nobody waits for it as for one that is cached. A grant for another service goes
   to another chunk, larger blocks included, as long as there is one: on a GPU one comes after the other.
9. Where a service could not be brought, it is *shunned*: other chunks are tried first, larger blocks
   included, until it worked there, is declared otherwise, or the node begins anew (`cure`, `found`).

Lifetimes. A holder's chunk lives from `allocate` to `release`. A resident lives from `occupy` to its
eviction, the loss of one of its GPUs, or `drop`. Both survive restarts: holders by `adopt` from the
journal, residents by `remember` and `recall`.

Invariants: no GPU has two holders (but by `adopt`, and where a service works for all of them); no
chunk has more holders than seats; blocks, holders and unhealthy GPUs partition
the declared ones; residents of a GPU need no more than its memory; no resident lies on a GPU that
is gone or unhealthy.

On a node `driver` carries grants out, through a `keeper` and `engines`; what is in memory there is the
truth, and reports make the books follow. Where a service is on a chunk, and what keeps it awake:
`instance`, over the transitions of `domain.services`.
"""
