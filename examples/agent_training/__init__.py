"""Training of a small agent with all of Tangram, on a CPU: rollouts, a fleet of engines, batches, ranks, weights.

`examples/train_agent.py` is the command. One step has five phases:

| phase | does | module |
|---|---|---|
| rollouts | groups of rollouts whose rewards differ | `rollout_sources` |
| experience | ranks read their rows and compute log-probabilities of the reference model | `rank_process` |
| exchange | these rows go to the ranks that update, balanced by length | `row_exchange` |
| update | the policy gradient on each rank's rows; gradients are summed over the ranks | `policy_update` |
| push | the checkpoint is committed, and the engines read its weights as the next version | `engines` |

Processes: the *trainer* (this package under the Python of Tangram), *ranks* and *engines* (under a Python that has torch), and the
processes of Tangram. The trainer has all decisions; ranks and engines end when the trainer ends.

Rules
1. A checkpoint is a folder with weights, optimizer, and facts: step, version of the weights, what the rollout source needs to continue,
   and the groups of each update so far. It is committed by one rename. What is not committed did not happen.
2. An update is applied once: a step begins with the weights of the newest checkpoint, and ends with the commit of the next one. A rank that
   ends takes its step with it: all ranks start again from the newest checkpoint, and repeat the step with the same rows.
3. No rollout trains twice: the groups of an update are in the checkpoint that it made, and rollouts are acknowledged only after
   the commit. A trainer that is started again finds what was submitted by the names of its groups.
4. The version of the weights is the number of the step that made them. Engines read the newest checkpoint when they start; pushing a
   version that an engine has changes nothing.
5. Each part of Tangram is behind one seam, and can be left out (`training_options.PARTS`). The steps are the same without it.

Limits: replay buffers and training beside sampling (fully asynchronous) are left out: a batch trains the policy that sampled it, or, for
rollouts that were parked, the one before.
"""
