"""The kernel: the building blocks of every engine, for any protocol.

        event    a read, a connection that ended, an answer, finished work, time
      │
        Engine   services decide; all output goes through one door
      │
    effect   Send · Close · Ask · Run · Proceed · Listen  performed by `runtime.performer`

A reply that cannot be sent yet is parked in the `Purgatory`. Anything due later is in `Deadlines`. The kernel
knows no service and no protocol.
"""
