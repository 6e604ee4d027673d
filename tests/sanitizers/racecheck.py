#!/usr/bin/env python3
"""racecheck.py: reads `compute-sanitizer --tool racecheck --racecheck-report hazard` on standard input and counts hazards by kind.
Exits 1 if one is not accounted for, and 2 if the report is not whole. What the tool leaves out beyond its --print-limit is not
looked at.

racecheck follows an mbarrier from each lane that arrives on it to each that waits, and a named barrier from those who arrive to those
who sync, but no further (controls.py, run beside this, shows it): order that goes through a second step is a hazard to it. ordo's
kernels have two such, on purpose:

released by one lane   A consumer warp reads row statistics or finished sums, then __syncwarp, then one lane arrives on the
                       buffer's mbarrier, and the loader fills it again (Consumer::release). One arrival a warp in place of 32.
                       Reported as write after read, by a lane that did not arrive and the loader. Without the __syncwarp the
                       report would be the same: that it is there, only the source shows.
staged in turns        The consumer warpgroups write a dQ staging buffer in turns; the adding warp stands between, synced with the
                       one by named.staged, with the other by named.staging_free. Reported as write after write, by threads in
                       the same place of the two warpgroups.
"""
import collections
import re
import sys

HAZARD = re.compile(r"Potential (\w+) hazard detected at __(\w+)__")
THREAD = re.compile(r"(Read|Write) Thread \((\d+),0,0\)")
LOADER, FIRST_CONSUMER, WARPGROUP = 0, 128, 128  # threads of ordo_main


def kind_of(hazard, space, accesses):
    """None if nothing accounts for it."""
    (first, a), (second, b) = accesses
    if space != "shared" or a < FIRST_CONSUMER:
        return None
    if hazard == "WAR" and (first, second) == ("Read", "Write") and b == LOADER and a % 32 != 0:
        return "released by one lane"
    if hazard == "WAW" and b >= FIRST_CONSUMER and a != b and a % WARPGROUP == b % WARPGROUP:
        return "staged in turns"
    return None


def main():
    kinds, unknown, summary = collections.Counter(), [], None
    hazard, accesses, lines, incomplete = None, [], [], 0
    for line in sys.stdin:
        if match := HAZARD.search(line):
            incomplete += hazard is not None
            hazard, accesses, lines = match.groups(), [], [line]
        elif (match := THREAD.search(line)) and hazard:
            accesses.append((match[1], int(match[2])))
            lines.append(line)
            if len(accesses) == 2:
                kind = kind_of(*hazard, accesses)
                kinds[kind or "unaccounted"] += 1
                if kind is None:
                    unknown.append("".join(lines))
                hazard = None
        elif "RACECHECK SUMMARY" in line:
            summary = line
    for text in unknown[:5]:
        print(text, end="")
    print(", ".join(f"{kind}: {number}" for kind, number in sorted(kinds.items())) or "no hazards")
    if summary is None or hazard is not None or incomplete > 0:
        print(f"the report is not whole: {incomplete} hazards without threads, summary: {summary}")
        sys.exit(2)
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()
