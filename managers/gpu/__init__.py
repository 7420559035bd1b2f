"""GPUs: chunks that actions hold, and services that stay in GPU memory between actions.

Theory of operation (paper §5.3, evict-on-execution). Many services share few GPUs. An action is
granted a *chunk*; if its service is not in the memory of that chunk, the service is restored from
host memory, and others are evicted from there, but only as many as necessary. After the action the
service stays *cached* until another one needs the memory. Eviction writes nothing back: the copy in
host memory does not change.

Rules
1. A GPU is *free*, *granted*, or *unhealthy*. Services cached on a free GPU do not make it less free:
   they can always be evicted. So what fits depends on holders and health alone.
2. Free GPUs form the largest aligned blocks of 1, 2, 4, 8 they can. Blocks are never stored: they
   are read from 8 bits per cell, so splitting and merging cannot go wrong or leak (`ledger.buddies`).
3. A chunk comes from the smallest block that suffices; among its places the one that caches the
   service, then one with free memory, then the one whose eviction costs least, then the lowest.
   Places with an unhealthy GPU do not count. A grant prefers a free chunk that caches the service
   even in a larger block; a reservation does not (`at_home`).
4. The cost of evicting a service is a function; by default its last use (LRU), and next to nothing
   for one that was prefetched (rule 8) and never used. A place costs as much as the costliest service
   on it; services that are `wanted` cost more than any.
5. Choosing a chunk evicts nothing: `ChunkLedger.occupy` does, when a service is placed there. So an
   allocation that is released leaves no trace, and cycles may reserve and release at will.
6. A service is evicted whole, from all GPUs it is on. Services share a GPU while their declared
   memory fits; one that declares none takes it whole.
7. A granted chunk has one holder, unless its service takes several requests at once (its engine
   batches them): then others `join`, up to the number it declares (`seats`). They hold the chunk
   together, and it counts once. It is free when the last of them releases it.
8. A service may be *prefetched* to a free chunk with free memory: nothing is evicted, and the chunk
   stays free. It is `arriving` until its node confirms it; a grant may use the chunk before, but no
   action waits for it as for a cached one. A grant for another service takes another chunk, larger
   blocks included, as long as there is one: a GPU restores one service at a time.
9. A chunk on which a service failed to start is avoided while another is free, larger blocks
   included, until the service starts there, is declared otherwise, or its node restarts (`cure`, `found`).

Lifetimes. A holder's chunk lives from `allocate` to `release`. A resident lives from `occupy` to its
eviction, the loss of one of its GPUs, or `drop`. Both survive restarts: holders by `adopt` from the
journal, residents by `remember` and `recall`.

Invariants: no GPU has two holders (but by `adopt`, and where one service works for all of them); no
chunk has more holders than seats; blocks, holders and unhealthy GPUs partition the declared ones;
residents of a GPU need no more than its memory; no resident is on a GPU that is gone or unhealthy.

On a node, `driver` executes grants through `service_runner` and `engines`. The node's memory is the
truth, and its reports correct the ledger. States of a service on a chunk: `residents_store`, over the
transitions of `domain.services`.
"""
