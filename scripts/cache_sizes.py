"""Print how far counted cache sizes are from those that servers printed, row by row.

python scripts/cache_sizes.py
"""

from statistics import median

from shardwise.evidence.serving.cache_sizes import cache_sizes


def main() -> None:
    rows = sorted(cache_sizes(), key=lambda row: (row.held_out, row.name))
    for row in rows:
        kind = "held out" if row.held_out else "fitted"
        what = f"{row.measured:14,.2f} {row.predicted:14,.2f} {row.error:+7.1%}" if row.told else ""
        state = "" if row.started else f"did not start: {'PLANNED' if row.holds else 'refused'}"
        print(f"{row.name:18} {kind:9} {what:38} {state}".rstrip())
    for held_out in (False, True):
        errors = [row.error for row in rows if row.told and row.held_out is held_out]
        sizes = sorted(map(abs, errors))
        within = sum(size <= 0.2 for size in sizes)
        name = "held out" if held_out else "fitted"
        print(f"{name}: {len(errors)} sizes, median {median(sizes):.1%}, {within} within 20 %, ")
        print(f"  most too large {max(errors):+.1%}")
    failed = [row for row in rows if not row.started]
    print(f"{sum(row.holds for row in failed)} of {len(failed)} failed starts are planned")


if __name__ == "__main__":
    main()
