"""The remoting protocol without sockets: frames, commands, typed headers and bodies, signatures."""
