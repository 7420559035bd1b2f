"""Object store: large bytes that outlive the machine that made them, and pass no web process.

``TANGRAM_OBJECT_STORE`` names it: ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME``, or ``file:///FOLDER`` on a shared file system.
Without it nothing here is used.

    snapshots/PROJECT/SHA256   archive of a snapshot, copied by the node that took it; for when that node is gone
    images/ALL/SHA256          archive of an image that was imported for all nodes; each pulls it once, when it is imported or first used
    files/PROJECT/SHA256       a file, the archive of a tree or the result of an action, on its way between a client and a node, by URLs that a
                               web process signs

Rules
1. A key ends with the digest of the content. The sender passes the content through it before the object appears, and
   `ObjectStore.get` raises at the end of what does not have it. A receiver makes nothing visible before that end.
2. An object appears whole or not at all. `put` of what breaks off, is cancelled, or has another digest leaves nothing.
3. An object may be stored again, which renews its age. `sweeping` deletes files at the age of a day, and snapshots and images of that age
   that no entry of a registry refers to; so an object is put before what refers to it.
4. From node to node comes first: the store is asked when the node that has a snapshot does not answer.
5. What the store cannot do raises `Unavailable` or `StorageFull` with the setting to look at. Requests are repeated before, with backoff.
6. A node puts what it makes, and takes what others have put, by `contents`.
"""
