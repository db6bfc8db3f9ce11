"""Between host and stub: the control channel and tensor memory."""
