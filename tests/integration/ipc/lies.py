"""What a scripted stub says that is not true: code for its functions, and how the host puts what is wrong with it."""

LIES = {
    # What is said in `execute`, and what the host finds wrong with it.
    "a block twice in one answer": (
        "segment = stub.output_segment()\nplace = ['OUT', 'UINT8', [64], segment, 0, 64]\nstub.result(place, place)",
        "lies in memory that the stub may not use",
    ),
    "a block that the host still reads": (
        # The test keeps the first answer.
        "if stub.executions == 1:\n    stub.number = stub.output_segment()\n"
        "stub.result(['OUT', 'UINT8', [64], stub.number, 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "an output that begins beyond the segment": (
        "stub.result(['OUT', 'UINT8', [64], stub.output_segment(), 1 << 20, 64])",
        "lies in memory that the stub may not use",
    ),
    "an output that ends beyond the segment": (
        "stub.result(['OUT', 'UINT8', [64], stub.output_segment(), (1 << 20) - 32, 64])",
        "lies in memory that the stub may not use",
    ),
    "an offset at the end of all numbers": (
        "stub.result(['OUT', 'UINT8', [64], stub.output_segment(), (1 << 63) - 1, 64])",
        "lies in memory that the stub may not use",
    ),
    "a size at the end of all numbers": (
        "stub.result(['OUT', 'UINT8', [(1 << 63) - 1], stub.output_segment(), 0, (1 << 63) - 1])",
        "lies in memory that the stub may not use",
    ),
    "very many outputs of nothing": (
        "stub.result(*[['OUT', 'UINT8', [0], 0, 0, 0]] * 100000)",
        "a frame does not decode",
    ),
    "a call with very many parameters": (
        "stub.send((CALL, 1, 'never', -1, False, 0, [], [], ['', 0, 0, 0, 0, {str(n): n for n in range(100000)}, 0, ''], []))",
        "a frame does not decode",
    ),
    "a shape of very many dimensions": (
        "stub.result(['OUT', 'UINT8', [1 << 62] * 60000, 0, 0, 64])",  # their product would take half a minute
        "a frame does not decode",
    ),
    "an offset beyond all numbers": (
        "stub.result(['OUT', 'UINT8', [64], 0, 1 << 64, 64])",
        "a frame does not decode",
    ),
    "an output in input memory": (
        "stub.result(['OUT', 'UINT8', [64], stub.segment(INPUT), 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "an output where the executions are counted": (
        "stub.result(['OUT', 'UINT8', [8], stub.segment(PROGRESS), 0, 8])",
        "lies in memory that the stub may not use",
    ),
    "an output in a segment that was given back": (
        "segment = stub.output_segment()\nstub.send((DETACHED, segment))\n"
        "stub.result(['OUT', 'UINT8', [64], segment, 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "memory that the host still reads is given back": (
        "segment = stub.output_segment()\nstub.result(['OUT', 'UINT8', [64], segment, 0, 64])\n"
        "stub.send((DETACHED, segment))",
        "dropped output memory that is still being read",
    ),
    "an input is given back twice": (
        "place = [stub.segment(INPUT), 0]\nstub.send((FREE_INPUT, [place]))\nstub.send((FREE_INPUT, [place]))",
        "was not lent",
    ),
    "an input is given back twice in one message": (
        "stub.send((FREE_INPUT, [[stub.segment(INPUT), 0]] * 2))",
        "was not lent",
    ),
    "a part of an input is given back": ("stub.send((FREE_INPUT, [[stub.segment(INPUT), 64]]))", "was not lent"),
    "an output beyond the frame": (
        "stub.result(['OUT', 'UINT8', [5], 0, 0, 5], tail=b'four')",
        "reaches beyond its frame",
    ),
    "very many outputs of the same bytes in the frame": (
        "stub.result(*[['OUT', 'UINT8', [1 << 13], 0, 0, 1 << 13]] * 1000, tail=bytes(1 << 13))",
        "shares bytes of its frame with others",
    ),
    "outputs of many answers that share bytes in the frame": (
        "answer = [None, [['OUT', 'UINT8', [64], 0, 0, 64]], None]\n"
        "stub.send((RESPOND, stub.execution, 0, False, answer), (RESPOND, stub.execution, 0, True, answer), tail=bytes(64))",
        "shares bytes of its frame with others",
    ),
    "very many outputs of the same memory": (
        "size = 1 << 22\nsegment = stub.output_segment(size)\n"
        "stub.result(*[['OUT', 'UINT8', [size - n], segment, n, size - n] for n in range(1000)])",
        "shares memory with others",
    ),
    "inputs of calls that share bytes in the frame": (
        "place = ['IN', 'UINT8', [1 << 13], 0, 0, 1 << 13]\n"
        "stub.send(*[(CALL, number, 'callee', -1, False, 0, [place], [], None, []) for number in range(100)], tail=bytes(1 << 13))",
        "shares bytes of its frame with others",
    ),
    "files of models that share bytes in the frame": (
        "place = ['file:1/model.py', 'UINT8', [1 << 13], 0, 0, 1 << 13]\n"
        "stub.send(*[(LOAD_MODEL, number, 'other', '{}', [place]) for number in range(100)], tail=bytes(1 << 13))",
        "shares bytes of its frame with others",
    ),
    "a shape that multiplies to a size": (
        "stub.result(['OUT', 'UINT8', [1 << 62, 1 << 62], 0, 0, 0])",
        "is no UINT8",
    ),
    "a shape without elements and bytes": (
        "stub.result(['OUT', 'FP32', [0, 1 << 62], 0, 0, 4], tail=b'four')",
        "is no FP32",
    ),
    "another turn where there is none": (
        "stub.send((RESCHEDULED, stub.execution, [0]))\nstub.returned()",
        "executed once more that the stub did not have",
    ),
    "the configuration once more": ("stub.send((COMPLETED, {}))", "Completed is out of place while ready"),
    "the beginning once more": ("stub.send((INITIALIZED, True))", "Initialized is out of place while ready"),
    "a failure to load": ("stub.send((FAILED, 'load', [1, 'too late']))", "Failed is out of place while ready"),
    "answers in the wrong number": ("stub.send((RESULT, stub.execution, 1, 1, 1, 1, []))", "wrong number of answers"),
    "an answer to another execution": (
        "stub.execution += 1\nstub.result()",
        "a result for which there is no execution",
    ),
    "two answers": ("stub.result()\nstub.result()", "a result for which there is no execution"),
    "a response to an execution that was not sent": (
        "stub.send((RESPOND, 999, 0, True, None))",
        "a response for which there is no request",
    ),
    "a response to a request that was not sent": (
        "stub.send((RESPOND, stub.execution, 1, True, None))",
        "a response for which there is no request",
    ),
    "a response without content and end": (
        "stub.send((RESPOND, stub.execution, 0, False, None))",
        "without content and without the final flag",
    ),
    "a response after the answer": ("stub.result()\nstub.respond()", "a response for which there is no request"),
    "a final response twice": ("stub.respond()\nstub.respond()", "a response to a request that is answered"),
    "a response after the final flag": (
        "stub.send((RESPOND, stub.execution, 0, True, None))\nstub.respond(final=False)",
        "a response to a request that is answered",
    ),
    "a final flag after the final response": (
        "stub.respond()\nstub.send((RESPOND, stub.execution, 0, True, None))",
        "a final flag for a request that is answered",
    ),
    "an answer after the final response": (
        "stub.respond()\nstub.result()",
        "a response to a request that is answered",
    ),
    "a response after everything": (
        "stub.respond()\nstub.returned()\nstub.respond()",
        "a response for which there is no request",
    ),
    "a return twice": (
        "stub.returned()\nstub.returned()",
        "a result for which there is no execution",
    ),
    "a response in foreign memory": (
        "stub.respond(['OUT', 'UINT8', [64], stub.segment(INPUT), 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "work handed back that nobody sent": ("stub.send((HANDED_BACK, [999]))", "handed back that the stub did not have"),
    "work handed back twice": (
        "stub.send((HANDED_BACK, [stub.execution] * 2))",
        "handed back that the stub did not have",
    ),
    "work handed back beside what nobody sent": (
        "stub.send((HANDED_BACK, [stub.execution, 999]))",
        "handed back that the stub did not have",
    ),
    "work handed back whose input is gone": (
        "stub.send((FREE_INPUT, [requests[0][0][0][3:5]]), (HANDED_BACK, [stub.execution]))",
        "whose input the stub had given back",
    ),
    "work handed back that is answered": (
        "stub.respond()\nstub.send((HANDED_BACK, [stub.execution]))",
        "handed back that the stub did not have",
    ),
    "work handed back that is half answered": (
        "stub.respond(final=False)\nstub.send((HANDED_BACK, [stub.execution]))",
        "handed back that the stub did not have",
    ),
    "work handed back again and again": ("stub.send((HANDED_BACK, [stub.execution]))", "all work is handed back"),
    "a model is run in a process that has no other": (
        "stub.send((LOCAL_CALL, 'never_0', 1, 2, 3, 4, 1, None, False, []))",
        "a call of another model in a process that has none",
    ),
    "steps of an ensemble have followed what has none": (
        "stub.send((FOLLOWED, stub.execution, 1, [], [[None, [], None]]))",
        "steps that have followed an execution that has none",
    ),
    "steps of an ensemble have followed what was not sent": (
        "stub.send((FOLLOWED, 999, 1, [], []))",
        "steps that have followed an execution that has none",
    ),
    "it is occupied by another model in a process that has no other": (
        "stub.send((OCCUPIED, True))",
        "a call of another model in a process that has none",
    ),
    "a call with a number that is taken": (
        "call = (CALL, 1, 'never', -1, False, 0, [], [], None, [])\nstub.send(call, call)",
        "call 1 is open already",
    ),
    "a call with an input in foreign memory": (
        "stub.call(1, places=[['IN', 'FP32', [16], stub.segment(INPUT), 0, 64]])",
        "lies in memory that the stub may not use",
    ),
    "a call with an input beyond its memory": (
        "stub.call(1, places=[['IN', 'FP32', [16], stub.output_segment(), (1 << 20) - 32, 64]])",
        "lies in memory that the stub may not use",
    ),
    "a call with an input beyond its frame": (
        "stub.call(1, places=[['IN', 'FP32', [2], 0, 0, 8]], tail=b'four')",
        "reaches beyond its frame",
    ),
    "a call with a shape of another size": (
        "stub.call(1, places=[['IN', 'FP32', [3], 0, 0, 8]], tail=bytes(8))",
        "is no FP32",
    ),
    "a call with a block twice": (
        "place = ['IN', 'FP32', [16], stub.output_segment(), 0, 64]\nstub.call(1, places=[place, place])",
        "lies in memory that the stub may not use",
    ),
    "a call with memory that is being copied": (
        "segment = stub.output_segment(2 << 20)\n"
        "calls = [(CALL, number, 'callee', -1, False, 0, [['IN', 'FP32', [1 << 19], segment, 0, 2 << 20]], [], None, [])\n"
        "    for number in (1, 2)]\nstub.send(*calls)",
        "lies in memory that the stub may not use",
    ),
    "a metric of nobody is changed": ("stub.send((CHANGE_METRIC, 1, 0, 1.0))", "was never given to this stub"),
    "a metric of nobody is read": ("stub.send((READ_METRIC, 1, 1))", "was never given to this stub"),
    "a metric of nobody is dropped": ("stub.send((DROP_METRIC, 1))", "was never given to this stub"),
    "a metric of a family of nobody": ("stub.send((NEW_METRIC, 1, 1, {}, None))", "was never given to this stub"),
    "a counter goes back": (
        "stub.send((NEW_FAMILY, 1, 'lie_total', '', 0))\nstub.until(ANSWER)\n"
        "stub.send((NEW_METRIC, 2, 1, {}, None))\nstub.until(ANSWER)\nstub.send((CHANGE_METRIC, 2, 0, -1.0))",
        "changed in a way that its kind does not allow",
    ),
    "a model to load from foreign memory": (
        "stub.send((LOAD_MODEL, 1, 'other', '{}', [['file:1/model.py', 'UINT8', [64], stub.segment(INPUT), 0, 64]]))",
        "lies in memory that the stub may not use",
    ),
    "very many models to load": (
        "stub.send(*[(LOAD_MODEL, number, 'other', '', []) for number in range(1001)])",
        "1000 questions about models are open already",
    ),
    "an answer about readiness": ("stub.send((READINESS, True, ''))", "readiness that nobody asked for"),
    "another codec": (
        "stub.socket.sendall(struct.pack('<II', 4, 0) + b'\\x91\\x92\\x28\\x00')",
        "a frame does not decode",
    ),
    "a frame that nobody has room for": (
        "stub.socket.sendall(struct.pack('<II', 1 << 31, 0))",
        "frame announces 2147483648 metadata and 0 tail bytes",
    ),
}
"""Code of an ``execute``, by what is wrong with it, and how the host puts it."""

LATE = {
    # What an execution says that is answered all the same.
    "times that run backwards": "stub.result(times=((1 << 63) - 1, 5, 3, 0))",
    "no time at all": "stub.result(times=(0, 0, 0, 0))",
    "times in the future": "stub.result(times=((1 << 63) - 1,) * 4)",
    "more executions than there were": "stub.progress((1 << 64) - 1)\nstub.result()",
    "overlapping outputs": "if stub.executions == 1:\n    stub.number = stub.output_segment()\nsegment = stub.number\n"
    "stub.result(['OUT', 'UINT8', [100], segment, 0, 100], ['OUT', 'UINT8', [100], segment, 64, 100])",
    "an empty list of messages": "stub.send()\nstub.result()",
    "memory that was not asked for": "stub.send((FREE_INPUT, []), (DETACHED, 12345))\nstub.result()",
    "an end without content": "stub.send((RESPOND, stub.execution, 0, True, None))\nstub.returned()",
    "a response and then the return": "stub.respond()\nstub.returned()",
    "the return and then a response": "stub.returned()\nstub.respond()",
    "work handed back once": "if stub.executions % 2:\n    stub.send((HANDED_BACK, [stub.execution]))\nelse:\n    stub.result()",
    "no work handed back": "stub.send((HANDED_BACK, []))\nstub.result()",
    "a call is cancelled that nobody made": "stub.send((CANCEL_CALL, 1), (CANCEL_CALL, (1 << 63) - 1))\nstub.result()",
    "a call is cancelled twice and its number used again": "for _ in range(2):\n"
    "    stub.call(7, 'never')\n    stub.send((CANCEL_CALL, 7), (CANCEL_CALL, 7))\n"
    "    assert stub.until(REPLY)[1:3] == [7, True]\nstub.result()",
    "a call of a model that is not there": "stub.call(1, 'nobody')\n"
    "assert stub.until(REPLY)[3][0][1].startswith('Model nobody - Error')\nstub.result()",
    "a call without what its model needs": "stub.call(1)\n"
    "assert 'expected 1 inputs but got 0' in stub.until(REPLY)[3][0][1]\nstub.result()",
    "a call for an execution that is not there": "stub.call(1, 'nobody', execution=999)\nstub.until(REPLY)\nstub.result()",
    "a call for which a model waits that is not there": "stub.send((CALL, 1, 'nobody', -1, False, stub.execution, [], [], None, ['never_0']))\n"
    "stub.until(REPLY)\nstub.result()",
    "a call that outlives what it was made for": "stub.call(stub.executions, 'never', execution=stub.execution)\nstub.result()",
    "a question about a model that is not there": "stub.send((IS_MODEL_READY, 1, 'nobody', 'x' * 1000))\n"
    "assert stub.until(ANSWER)[2]\nstub.result()",
    "a model whose name is a path": "stub.send((LOAD_MODEL, 1, '../../etc', '', []))\nassert stub.until(ANSWER)[2]\nstub.result()",
}

DEATHS = {
    # What a process does before it ends, and whether the request counts as begun, which no other process may repeat.
    "half a frame": ("stub.socket.sendall(b'\\x10\\0\\0\\0\\0\\0\\0\\0[[37')\nos._exit(3)", True),
    "says that it has begun what nobody sent": ("stub.progress((1 << 64) - 1)\nos._exit(3)", True),
    "says that it has begun nothing": ("stub.progress(0)\nos._exit(3)", False),
}

ITERATIVE = {
    # The same for models whose requests may be executed once more.
    "another turn and an answer": (
        "stub.send((RESCHEDULED, stub.execution, [0]))\nstub.result()",
        "executed once more that is answered",
    ),
    "another turn after the final response": (
        "stub.respond()\nstub.send((RESCHEDULED, stub.execution, [0]))\nstub.returned()",
        "executed once more that is answered",
    ),
    "another turn twice": (
        "stub.send((RESCHEDULED, stub.execution, [0, 0]))",
        "executed once more that the execution does not have",
    ),
    "another turn for a request beyond the execution": (
        "stub.send((RESCHEDULED, stub.execution, [1]))",
        "executed once more that the execution does not have",
    ),
    "another turn for what nobody sent": (
        "stub.send((RESCHEDULED, 999, [0]))",
        "executed once more that the stub did not have",
    ),
    "another turn without its input": (
        "stub.send((FREE_INPUT, [[stub.segment(INPUT), 0]]))\n"
        "stub.send((RESCHEDULED, stub.execution, [0]))\nstub.returned()",
        "executed once more whose input the stub had given back",
    ),
    "another turn and a response": (
        "stub.send((RESCHEDULED, stub.execution, [0]))\nstub.returned()\nstub.respond()",
        "a response ",
    ),
}

LOADS = {
    "another version": (
        "def hello():\n    stub.send((HELLO, 99, 1, '', '', ['json'], {}))",
        "the model runner speaks version 99 of the protocol",
    ),
    "no greeting": ("def hello():\n    stub.send((COMPLETED, None))", "Completed is out of place while starting"),
    "an answer before the question": ("def hello():\n    stub.result()", "Result is out of place while starting"),
    "a greeting twice": (
        "def load(message):\n    stub.send((HELLO, PROTOCOL_VERSION, 1, '', '', ['json'], {}))",
        "Hello is out of place while loading",
    ),
    "ready too early": (
        "def load(message):\n    stub.send((INITIALIZED, False))",
        "Initialized is out of place while loading",
    ),
    "a question too early": (
        "def load(message):\n    stub.send((NEW_FAMILY, 1, 'too_early', '', 0))",
        "NewFamily is out of place while loading",
    ),
    "a call while it begins": ("def initialize(message):\n    stub.call(1)", "Call is out of place while initializing"),
    "a response while it begins": (
        "def initialize(message):\n    stub.respond()",
        "Respond is out of place while initializing",
    ),
    "an odd configuration": (
        "def load(message):\n    stub.send((COMPLETED, {'input': 5, 'max_batch_size': []}))",
        "auto_complete_config",
    ),
    "a configuration of very many parts": (
        "def load(message):\n    stub.send((COMPLETED, {'input': [[]] * 2_000_000}))",
        "the completed configuration has",
    ),
    "a configuration that is no document": (
        "def load(message):\n    stub.send((COMPLETED, [1]))",
        "a frame does not decode",
    ),
    "says that it failed, and stays": (
        "import time\ndef load(message):\n    stub.send((FAILED, 'load', [3, 'on purpose']))\n    time.sleep(1000)",
        "on purpose",
    ),
    "hangs up": ("import time\ndef load(message):\n    stub.socket.close()\n    time.sleep(1000)", "is not healthy"),
    "fails to begin, and stays": (
        "import time\ndef initialize(message):\n    stub.send((FAILED, 'initialize', [1, 'not today']))\n    time.sleep(1000)",
        "not today",
    ),
}
"""Scripts that lie before they are ready, and the reason why the model is not loaded."""
