"""Router of generations: sends the requests of trainers to the workers of fleets.

Theory of operation. Each web process has a `FleetRouter`. It submits a generation as an action, waits in the journal for its
grant, which names the worker and the rank, streams from the worker to the client, and reports the end with the tokens. The
scheduler decides, the router obeys: slots, routes and order are in `scheduler.core.handlers.generations`, where the seam is written.

    client ──▶ facade ──▶ FleetRouter.serve ──ActionSubmitted──▶ inbox
                               ▲      │                            │
                     HeldGenerations ◀── Grant, Abort, Finish ◀── journal
                                      └──HTTP──▶ worker (`WorkerClient`)

Lifetimes. A `HeldGeneration` lives from its submission to its `Finish`, and longer than the request of a client that left. A
connection to a worker is kept for `worker_http.IDLE_SECONDS` after its last answer.

Rules
1. A prompt stays in the process with its connection: the action in inbox and journal has no body. Streams reach neither.
2. What is granted here is renewed by one `LeasesRenewed` until its `Finish` is seen, and ended by one `ActionFinished` for each grant.
3. Nothing of an answer reaches the client before its first piece: until then another worker may answer instead. After that
   the generation ends with its worker; the report says so (``delivered``), and it is not made again.
4. A worker that refuses connections is reported unhealthy before the generation that found out; it is routed elsewhere then.
   Probes say when it works again.
5. A client that leaves, an `Abort` and the end of the process close the connection to the worker, which ends the generation there.
"""
