"""``python -m tests.lint``: print every fault with its place; the exit status says whether there are any."""

import sys

from tests.lint import columns, flag_page, house_rules, pages, prose, quoted_texts, snapshots, unit_tests


def main() -> int:
    checks = (flag_page, house_rules, unit_tests, pages, columns, quoted_texts, prose, snapshots)
    faults = [fault for check in checks for fault in check.faults()]
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults in sources and pages" if faults else "Sources and pages: no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
