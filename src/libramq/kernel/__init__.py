"""The kernel: what every engine is made of, whichever protocol it serves.

    event    a read, a connection that ended, an answer, work that was done, time
      │
    Engine   services decide; what must leave goes through one door
      │
    effect   Send · Close · Ask · Run · Proceed · Listen  performed by `runtime.performer`

An answer that cannot be given yet is parked in the `Purgatory`. Whatever is due later is in `Deadlines`. The
kernel knows no service and no protocol.
"""
