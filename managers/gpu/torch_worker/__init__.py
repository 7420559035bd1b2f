"""The worker of engine ``torch``: one model in a process of its own, behind HTTP.

It needs Python ≥ 3.9, torch, and nothing else of ours or of our dependencies, so that a service can
name the interpreter that has its torch. `managers.gpu.engines.sleeping` starts it and calls it.

Theory of operation. All weights are in *one* flat copy in host memory, page-locked where there is a
GPU (`weights`). To restore, one flat buffer is allocated on the GPU, the copy streams into it in a few
large pieces, and every parameter becomes a view into it. To release, parameters become views into
the host's copy again and the buffer is dropped; weights change on the host alone (rule 8), so nothing is written back.

Rules
1. It starts *host resident* and reports that at ``GET /tangram/state``. ``POST /tangram/restore`` makes
   it *resident*, ``POST /tangram/release`` host resident again; both are idempotent. ``GET /health``
   is 200 when it is resident, else 503.
2. Any other path is passed to the model's handler, and only while it is resident: one request at a
   time, or as many as the service declares, each in a thread of its own (`switch_lock`). Nothing is
   batched.
3. After each restore the weights in GPU memory have the checksums of the host's copy, and a fixed
   prompt has the answer of the first restore (I12). Otherwise the memory is released and the restore
   fails with ``answers_changed``.
4. Weights take no more memory than declared; a model that does not fit, or that the device refuses,
   fails with ``out_of_memory`` and advice on what to declare, and stays host resident.
5. Errors are JSON: ``{"error": kind, "detail": words}``; of an answer that has begun as events, one more event.
6. A model of transformers speaks OpenAI's protocol (`language_model`), whole or as events. It keeps what it computed for a trajectory
   (`kv_caches`), which the header ``X-Tangram-Trajectory`` or the member ``tangram.trajectory`` of the body names.
7. ``/tangram/caches`` lists the caches; ``GET``, ``PUT`` and ``DELETE`` of ``/tangram/caches/TRAJECTORY`` export, accept and drop one, and
   ``POST …/pull {"source": "http://HOST:PORT"}`` moves it here from another worker (`cache_exchange`). They are below ``/tangram``, which
   no client of a service can call: a cache has the tokens of its conversation.
8. ``POST /tangram/weights`` replaces the weights (`new_weights`). Caches are void with new weights, and when the weights leave the device:
   a worker that sleeps keeps none.
9. With several GPUs the model is divided by its layers (`split`), one flat copy and buffer for each GPU.

A CUDA context, which page-locking needs, holds some hundred MB of its GPU while the process lives.
"""
