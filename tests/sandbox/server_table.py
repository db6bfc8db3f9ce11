"""Attacks on the server itself, each with the test that tries it: the second part of the page about attacks.

:mod:`tests.sandbox.table` holds the attacks of a model's code inside its process. This module holds attacks by other
means: requests, files, and the socket between the server and a model's process.
"""

from dataclasses import dataclass

ROOT, USER, CONTAINER = "root", "ordinary user", "container"

BOTH, ALL = f"{ROOT}, {USER}", f"{ROOT}, {USER}, {CONTAINER}"

_CONTROL, _ROOMS = "tests/sandbox/test_model_control.py", "tests/sandbox/test_rooms.py"
_HOMES = "tests/sandbox/test_homes.py"

ANY = "any"
"""The attack is stopped regardless of the sandbox level, or of the kind of server."""


EVERYWHERE = f"{ROOT}, {USER}, {CONTAINER}"

_FILES = "tests/sandbox/test_strangers_files.py"
_FRONT_ENDS, _FRONT_END_PROCESSES = "tests/sandbox/test_front_ends.py", "tests/e2e/processes/test_front_ends.py"
_REMOTE = "tests/integration/remote/test_service.py"
_AUTHORS, _USERS = "tests/sandbox/test_environment_authors.py", "tests/sandbox/test_users_and_places.py"


@dataclass(frozen=True)
class ServerAttack:
    """One attack.

    Attributes:
        what: the end of the sentence that its group's title begins.
        by: the means that stop it.
        test: file and function that try it.
        levels: sandbox levels at which it is tried.
        servers: kinds of server on which it is tried.
    """

    what: str
    by: str
    test: str
    levels: str = ANY
    servers: str = ANY


SERVER_GROUPS: dict[str, tuple[str, tuple[ServerAttack, ...]]] = {
    "Files of a model": (
        "The author of a model tries to",
        (
            ServerAttack(
                "make the server read another user's file through a link",
                "files are opened beneath the model's directory",
                "tests/faults/test_author_files.py::test_a_link_hands_nothing_out",
            ),
            ServerAttack(
                "learn from the server through a link whether a file exists",
                "the server does not examine targets of links",
                "tests/faults/test_author_files.py::test_what_is_there_outside_is_not_told",
            ),
            ServerAttack(
                "lead the server out of the directory by renaming, by a mounted /proc, or on a kernel without `openat2`",
                "paths are walked by descriptors",
                "tests/unit/host/author_files/test_beneath.py::test_where_paths_lead",
            ),
            ServerAttack(
                "take all descriptors of the server by directories of any depth, where the kernel lacks `openat2`",
                "depth is bounded",
                "tests/unit/host/author_files/test_beneath.py::test_a_deep_path_takes_few_descriptors",
            ),
            ServerAttack(
                "block the server with a FIFO",
                "only regular files are opened",
                "tests/faults/test_author_files.py::test_a_fifo_stops_nobody",
            ),
            ServerAttack(
                "block the server with a device",
                "only regular files are opened",
                "tests/faults/test_author_files.py::test_a_device_stops_nobody",
            ),
            ServerAttack(
                "replace a file by a FIFO while it is read",
                "the file that was checked is the file that is read",
                "tests/unit/host/test_author_files.py::test_a_file_that_is_swapped_for_a_fifo_while_it_is_read",
            ),
            ServerAttack(
                "block the server with a lease on a file",
                "opening never waits",
                "tests/faults/test_author_files.py::test_a_lease_stops_nobody",
            ),
            ServerAttack(
                "fill the server's memory with a file of a terabyte",
                "sizes are limited",
                "tests/faults/test_author_files.py::test_a_file_of_a_terabyte_stops_nobody",
            ),
            ServerAttack(
                "make all threads of the server wait for a file system",
                "files are read by threads that the server can abandon",
                "tests/unit/host/test_apart.py::test_more_that_hang_than_there_are_places_let_others_pass",
            ),
            ServerAttack(
                "make the server walk all files of the machine through a link",
                "files are counted",
                "tests/faults/test_author_files.py::test_a_link_to_everything_is_not_walked_to_its_end",
            ),
            ServerAttack(
                "fill the server's memory with a large number in `config.pbtxt`",
                "numbers are limited, and slots are created on first use",
                "tests/faults/test_author_files.py::test_a_number_without_measure_is_refused",
            ),
            ServerAttack(
                "fill the server's memory with the result of `auto_complete_config`",
                "the same limits, checked before anything else",
                "tests/faults/test_author_files.py::test_what_a_model_completes_is_held_to_the_same_bounds",
            ),
            ServerAttack(
                "fill the server's memory with labels",
                "labels are counted",
                "tests/faults/test_author_files.py::test_labels_are_bounded",
            ),
            ServerAttack(
                "make the server start thousands of versions",
                "versions are counted",
                "tests/faults/test_author_files.py::test_versions_are_bounded",
            ),
        ),
    ),
    "Files for commands": (
        "The author of a framework's file, or of an environment, tries to",
        (
            ServerAttack(
                "run code as the user of `pybackend import --verify`",
                "the framework runs as a second model, in the sandbox of the imported one",
                f"{_FILES}::test_an_import_runs_a_pickle_only_in_the_sandbox",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "do so at `--sandbox-floor=strict`",
                "the floor holds for the framework, too",
                f"{_FILES}::test_a_floor_holds_for_the_framework_that_verifies",
                "strict",
                ROOT,
            ),
            ServerAttack(
                "run the first code of an environment as the user of an import",
                "the environment's Python starts in the sandbox",
                f"{_FILES}::test_an_import_starts_an_environment_only_in_the_sandbox",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "run it as the user of a test with the harness",
                "the harness starts it in the model's sandbox",
                f"{_FILES}::test_the_test_harness_starts_an_environment_only_in_the_sandbox",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "run code in `pybackend check` or `pybackend doctor`",
                "they start no model",
                f"{_FILES}::test_a_command_that_examines_models_runs_none_of_their_files",
                ANY,
                ROOT,
            ),
            ServerAttack(
                "run code as the user of `pybackend infer --repository`",
                "its server confines models like any other",
                f"{_FILES}::test_a_command_that_serves_a_model_does_so_in_the_sandbox",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "copy the user's files into an entry through links",
                "links that leave the directory are refused",
                "tests/unit/tools/importing/test_entry.py::test_links_that_leave_the_directory_are_refused",
            ),
        ),
    ),
    "Models that load models": (
        "A model that loads others tries to",
        (
            ServerAttack(
                "load or unload a model that its configuration does not name",
                "refused without `SANDBOX_MODEL_CONTROL`",
                f"{_CONTROL}::test_a_strict_model_controls_only_what_its_configuration_names",
                "strict",
                BOTH,
            ),
            ServerAttack(
                "load a model without a sandbox, or replace the code of another author's model, with a configuration or files",
                "refused without `--allow-model-overrides`",
                f"{_CONTROL}::test_nobody_brings_anything_for_another_author_without_the_operators_word",
                "standard, strict",
                BOTH,
            ),
            ServerAttack(
                "do so on a server with `--allow-model-overrides`",
                "always refused at `strict`",
                f"{_CONTROL}::test_a_strict_model_brings_nothing_even_where_others_may",
                "strict",
                BOTH,
            ),
            ServerAttack(
                "do so at `--sandbox-floor=strict`, or grant itself control of other models",
                "refused: the floor cannot be widened",
                f"{_CONTROL}::test_at_a_floor_no_model_gives_itself_control",
                "strict",
                BOTH,
            ),
            ServerAttack(
                "supply a model with more rights than its own: level, user, files, memory, processes, packages to install",
                "limited to the rights of the caller",
                f"{_CONTROL}::test_what_is_brought_is_not_freer_than_who_brings_it",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "read another model's files as labels of a configuration, or through its own environment",
                "limited to the rights of the caller",
                f"{_CONTROL}::test_files_of_others_are_not_reached_by_what_is_brought",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "keep a supplied model running as the superuser, or in place of the repository's",
                "the caller's layers are required; a load by name ends the override",
                f"{_CONTROL}::test_what_is_brought_is_as_confined_and_leaves_with_the_next_load",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "rewrite its own `config.pbtxt` to gain rights at the next load",
                "own user; else limited to its previous rights",
                f"{_CONTROL}::test_a_configuration_that_its_own_model_has_rewritten_gives_it_no_more",
                "standard",
                BOTH,
            ),
        ),
    ),
    "Environments": (
        "The author of an environment tries to",
        (
            ServerAttack(
                "fill the disk with an archive that unpacks to hundreds of times its size",
                "limits on the total, checked before each file is written",
                "tests/unit/host/environment/test_unpacking.py::test_a_bomb_is_refused",
            ),
            ServerAttack(
                "leave unusable environments in the cache",
                "unusable environments are removed",
                "tests/e2e/environments/test_refusals.py::test_nothing_of_them_stays_in_the_cache",
            ),
            ServerAttack(
                "start processes, run programs or outlive the server with code that runs before the sandbox is complete",
                "the sandbox is complete before the environment's Python starts, which is the only program that may run",
                f"{_AUTHORS}::test_its_first_code_is_as_strict_as_the_model",
                "strict",
                EVERYWHERE,
            ),
            ServerAttack(
                "forge the report that the sandbox is in force, or answer in its place",
                "the server's own Python reports, on a pipe that is closed afterwards",
                f"{_AUTHORS}::test_its_first_code_is_as_strict_as_the_model",
                "strict",
                EVERYWHERE,
            ),
            ServerAttack(
                "gain access to a directory by naming it in pyvenv.cfg",
                "only a Python without hidden parts is opened",
                f"{_AUTHORS}::test_it_opens_no_directory_by_naming_it",
                "strict",
                f"{ROOT}, {USER}",
            ),
            ServerAttack(
                "gain access to a directory, or another model's, by naming it as the environment",
                "the model is not loaded",
                f"{_AUTHORS}::test_what_is_no_environment_of_its_own_is_not_opened",
                "strict",
            ),
            ServerAttack(
                "present another model's process as its own",
                "the server checks parent and mark of a process",
                "tests/sandbox/test_foreign_zygote.py::test_it_cannot_pass_another_models_process_off_as_its_fork",
                "standard",
                f"{ROOT}, {USER}",
            ),
        ),
    ),
    "Directories and users": (
        "A model tries to",
        (
            ServerAttack(
                "list, read, change or replace another model's private directory",
                "Landlock, own user",
                f"{_ROOMS}::test_scratch_directories_are_private",
                "standard, strict",
                ALL,
            ),
            ServerAttack(
                "read the home directory of another model",
                "Landlock, a group for each home",
                f"{_HOMES}::test_what_libraries_write_into_it_is_there_at_the_next_start",
                "standard",
                BOTH,
            ),
            ServerAttack(
                "make the server open a foreign file through a link or a second name in its home directory",
                "only files with one name and the group of the home are opened, by descriptor",
                "tests/unit/host/sandbox/test_homes.py::test_files_are_opened_to_the_next_group_and_names_of_foreign_files_are_not",
                "standard",
                ROOT,
            ),
            ServerAttack(
                "list, read, change or replace files supplied with a load",
                "Landlock, own user",
                f"{_ROOMS}::test_files_that_came_with_a_load_are_private",
                "standard, strict",
                ALL,
            ),
            ServerAttack(
                "make the server remove another model's files through links in its private directory",
                "removal by descriptor",
                f"{_ROOMS}::test_no_link_of_a_model_leads_the_server_to_remove_what_is_not_its",
                "strict",
                ALL,
            ),
            ServerAttack(
                "claim the reservations of users",
                "reservations are locks on files in a directory of the server",
                f"{_USERS}::test_names_of_sockets_reserve_no_users",
                "standard",
                ROOT,
            ),
            ServerAttack(
                "run as the superuser when no users are left",
                "the model is not loaded",
                f"{_USERS}::test_a_model_without_a_user_of_its_own_is_not_loaded",
                "standard, strict",
                ROOT,
            ),
            ServerAttack(
                "run as the superuser because its author closed its files to others",
                "the model is not loaded",
                f"{_USERS}::test_what_a_strict_models_author_closed_to_its_user_is_no_way_to_be_root",
                "strict",
                ROOT,
            ),
            ServerAttack(
                "run without its sandbox because the kernel lacks a part of it",
                "the model is not loaded",
                f"{_USERS}::test_a_strict_model_is_not_loaded_without_its_sandbox",
                "strict",
                CONTAINER,
            ),
            ServerAttack(
                "keep processes of a user that is assigned to another model",
                "users with processes are not assigned",
                f"{_USERS}::test_users_who_have_processes_are_nobody_elses",
                servers=ROOT,
            ),
            ServerAttack(
                "read an earlier model's files in /tmp",
                "user numbers are reused as late as possible, even after a restart of the server",
                f"{_USERS}::test_users_come_again_as_late_as_possible",
                servers=ROOT,
            ),
            ServerAttack(
                "replace a directory that its next process may reach by a link",
                "the server follows no links when it opens directories to a process",
                f"{_USERS}::test_a_link_in_place_of_a_directory_opens_nothing_else",
                "standard",
                f"{ROOT}, {USER}",
            ),
            ServerAttack(
                "leave processes behind when the server is killed",
                "a process that outlives the server kills all marked processes",
                f"{_USERS}::test_what_a_model_has_started_ends_with_a_killed_server_in_a_container",
                "standard",
                CONTAINER,
            ),
        ),
    ),
    "Messages to the server": (
        "A compromised model process tries to",
        (
            ServerAttack(
                "block the server by sending it a descriptor that is slow to close",
                "the kernel rejects descriptors (`SO_PASSRIGHTS`, Linux 6.16); on older kernels the process is killed, and another "
                "thread closes the descriptor",
                "tests/integration/ipc/test_channel.py::test_a_descriptor_is_never_closed_on_the_event_loop",
            ),
            ServerAttack(
                "make the server copy the same bytes of a frame or segment for many tensors",
                "if tensors exceed the frame or the segment in total, the process is killed",
                "tests/integration/ipc/test_lies.py::test_lies",
            ),
            ServerAttack(
                "send messages that decode to a thousand times their size",
                "every list and table is limited before it is decoded; the process is killed",
                "tests/integration/ipc/test_lies.py::test_lies",
            ),
            ServerAttack(
                "fill the server's memory with calls with large parameters to a slow model",
                "64 MB for all open calls of a process; further calls are refused",
                "tests/integration/ipc/test_lies.py::test_calls_with_much_to_carry",
            ),
            ServerAttack(
                "block other requests by dying with as many open calls as it can make",
                "10,000 can be open; they are cancelled in slices",
                "tests/integration/ipc/test_lies.py::test_a_process_that_dies_with_many_open_calls",
            ),
            ServerAttack(
                "take all descriptors of the server by repeatedly requesting output memory",
                "segments grow in proportion to the existing memory, and each takes one descriptor",
                "tests/integration/ipc/test_output_memory.py::"
                "test_however_often_a_byte_is_asked_for_there_are_few_segments_of_one_descriptor_each",
            ),
            ServerAttack(
                "fill memory and the metrics page with histograms",
                "4 MB of the page for each model; the page is sent in parts",
                "tests/unit/host/observability/test_custom_metrics.py::test_a_model_takes_a_bounded_part_of_the_page",
            ),
            ServerAttack(
                "fill the pipe through which the server nudges it",
                "writes to that pipe never wait",
                "tests/integration/models/test_stub_process.py::test_a_stub_that_does_not_listen_to_nudges_keeps_nobody_waiting",
            ),
            ServerAttack(
                "lose the server's messages to other models by exhausting its user's quota of descriptors in transit",
                "messages wait until the kernel accepts them",
                "tests/integration/ipc/test_channel.py::"
                "test_a_frame_waits_while_others_of_this_user_have_too_many_descriptors_under_way",
                servers="ordinary user",
            ),
            ServerAttack(
                "die while the server has no descriptors left, so that it is not restarted",
                "failed restarts are retried",
                "tests/faults/test_restart.py::test_a_confined_model_comes_back_once_there_are_descriptors_again",
                "standard, strict",
                ROOT,
            ),
            ServerAttack(
                "truncate the counter of its executions before it dies, so that requests are never answered",
                "the segment is sealed; if it cannot be, all sent requests count as started",
                "tests/integration/memory/test_unsealed.py::"
                "test_a_process_that_cuts_the_count_of_its_executions_and_dies_leaves_nobody_without_an_answer",
            ),
            ServerAttack(
                "forge lines of the server's log, or move the cursor of its reader's terminal",
                "every name and text is escaped when a line is made",
                "tests/unit/host/observability/test_logging.py::test_nothing_that_a_model_says_passes_for_a_line_of_the_server",
            ),
        ),
    ),
    "Front ends in separate processes": (
        "Somebody who has captured a front end tries to",
        (
            ServerAttack(
                "reach another address with the connection of a client",
                "seccomp: sockets accept, receive and send, and nothing else",
                f"{_FRONT_ENDS}::test_attack_is_stopped",
            ),
            ServerAttack(
                "take the clients of all front ends by a program of the kernel's that chooses between them",
                "seccomp: of the options of sockets, only `TCP_NODELAY` can be set",
                f"{_FRONT_ENDS}::test_attack_is_stopped",
            ),
            ServerAttack(
                "leave a listening socket to its successor that accepts nobody",
                "seccomp; the server looks at the socket, and binds it again",
                f"{_FRONT_END_PROCESSES}::test_a_listener_that_was_shut_down_is_bound_again",
            ),
            ServerAttack(
                "make other front ends wait in a Unix socket that they share",
                "a time limit of the socket",
                "tests/unit/host/frontend/listening/test_shared_sockets.py::"
                "test_accepting_does_not_wait_whatever_another_process_has_set",
            ),
            ServerAttack(
                "keep clients waiting for a front end that dies as often as it is started",
                "others get its part of the connections meanwhile; readiness tells",
                f"{_FRONT_END_PROCESSES}::test_a_front_end_that_cannot_be_started_is_told_and_replaced",
            ),
            ServerAttack(
                "stop the server with messages of much work",
                "messages are handled in slices, and are bounded like requests",
                f"{_REMOTE}::test_a_frame_of_much_work_leaves_others_their_turns",
            ),
            ServerAttack(
                "stop the server by its death with all the requests that it may have open",
                "they are bounded, and cancelled in slices",
                f"{_REMOTE}::test_the_end_of_a_front_end_leaves_others_their_turns",
            ),
            ServerAttack(
                "make others wait for memory that it was asked to return",
                "one that answers other questions, but not this one, is killed",
                f"{_REMOTE}::test_a_front_end_that_does_not_return_memory_is_at_fault",
            ),
        ),
    ),
    "Clients": (
        "A client tries to",
        (
            ServerAttack(
                "take all descriptors of the server with idle connections, so that no process can be restarted",
                "a quarter of them, at most 4,096, is reserved for the server: further connections get 503",
                "tests/faults/test_restart.py::test_clients_leave_descriptors_for_a_restart",
            ),
            ServerAttack(
                "take all descriptors of the server by announcing tensors of which nothing comes",
                "what is announced shares segments of a growing size",
                "tests/faults/test_restart.py::test_what_clients_announce_leaves_descriptors_for_a_restart",
            ),
            ServerAttack(
                "use up the addresses of the server's process by announcing terabytes",
                "bound for all segments of a model",
                "tests/integration/memory/test_hygiene.py::test_what_is_announced_does_not_take_all_addresses",
            ),
            ServerAttack(
                "take memory beyond a model's limit by bytes that arrive before they are counted",
                "it is given back with the request",
                "tests/integration/memory/test_hygiene.py::test_bytes_for_which_there_was_no_memory_keep_none",
            ),
            ServerAttack(
                "fill the server's memory with responses that it does not read",
                "one limit on all data buffered for clients; numbers become JSON as they are read",
                "tests/e2e/http/test_slow_readers.py::test_answers_that_nobody_reads",
            ),
            ServerAttack(
                "hold that memory by reading very slowly",
                "slow clients are disconnected when memory is short",
                "tests/e2e/http/test_slow_readers.py::test_slow_clients_make_room",
            ),
            ServerAttack(
                "take a model's memory by announcing a large body",
                "memory is allocated as bytes arrive",
                "tests/e2e/http/test_large_bodies.py::test_announced_bytes_take_no_memory",
            ),
            ServerAttack(
                "hold a model's memory with an incomplete body",
                "slow clients are disconnected when memory is short",
                "tests/e2e/http/test_large_bodies.py::test_slow_senders_make_room",
            ),
            ServerAttack(
                "keep a connection open with a byte now and then",
                "minimum rate",
                "tests/integration/http/test_stalled_connections.py::test_bytes_that_trickle",
            ),
            ServerAttack(
                "block other requests with a large request",
                "JSON and strings are parsed in slices",
                "tests/integration/http/test_turns.py::test_requests",
            ),
            ServerAttack(
                "stop the server for others with texts full of commas",
                "slices end at commas between texts",
                "tests/unit/host/protocol/json/test_large_request.py::test_texts_full_of_commas_are_cut_between_them",
            ),
            ServerAttack(
                "block other requests with a small request for a large response",
                "JSON is made in pieces",
                "tests/integration/http/test_turns.py::test_answers",
            ),
            ServerAttack(
                "make the server parse millions of dimensions, inputs, parameters or brackets",
                "limits are checked before anything is converted",
                "tests/unit/host/protocol/json/test_large_request.py::test_refused_before_it_is_converted",
            ),
            ServerAttack(
                "block other requests with a document of a flat route: hundreds of thousands of members, columns or settings",
                "documents are weighed in slices before they are parsed; tables are decoded in slices",
                "tests/addons/test_turns.py::test_documents_of_other_routes",
            ),
            ServerAttack(
                "have a tensor filled with another tensor's values, or refused, by the way that a key is written",
                "what stands in for data contains a number that no client knows",
                "tests/unit/host/protocol/json/test_large_request.py::test_what_is_written_oddly_means_the_same",
            ),
            ServerAttack(
                "break the server with a number of thousands of digits",
                "versions and lengths are limited before they are parsed",
                "tests/e2e/http/test_routes.py::test_version_of_more_digits_than_any",
            ),
            ServerAttack(
                "close or redirect a connection with trailer fields",
                "trailer fields are ignored",
                "tests/e2e/http/test_connection.py::test_trailers_say_nothing_about_the_connection",
            ),
            ServerAttack(
                "get a second response to one request, which a proxy would attribute to another one",
                "malformed data after a response closes the connection",
                "tests/e2e/http/test_connection.py::test_malformed_chunk_behind_an_answer_gets_no_second_one",
            ),
            ServerAttack(
                "have the server log a traceback, and answer 500, by a malformed request behind one that is answered by an error",
                "the reason is kept by the connection",
                "tests/e2e/http/test_connection.py::test_malformed_request_behind_an_error",
            ),
            ServerAttack(
                "smuggle a request past a proxy with chunked HTTP/1.0",
                "it is refused, and the connection is closed",
                "tests/e2e/http/test_connection.py::test_chunks_need_http_1_1",
            ),
        ),
    ),
}
"""Groups by title, each with the head of its first column."""


def server_rows() -> list[str]:
    """The tables as lines of Markdown."""
    lines = []
    for title, (head, attacks) in SERVER_GROUPS.items():
        if not attacks:
            continue
        lines += [f"### {title}", "", f"| {head} | Level | Server | Stopped by |", "|---|---|---|---|"]
        lines += [f"| {attack.what} | {attack.levels} | {attack.servers} | {attack.by} |" for attack in attacks]
        lines.append("")
    return lines


if __name__ == "__main__":
    from tests.sandbox.table import rows

    print("\n".join([*rows(), *server_rows()]).rstrip())  # noqa: T201  for the page about attacks
