"""Gate of a canary: fails as soon as a Prometheus expression is above a limit.

Arguments: Prometheus' URL, expression, limit, seconds to watch, seconds between two looks. No data counts as 0; a
Prometheus that never answered fails the gate, since nothing was seen.
"""

import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

prometheus, expression = sys.argv[1], sys.argv[2]
limit, duration_s, interval_s = map(float, sys.argv[3:6])


def value() -> float:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus.rstrip('/')}/api/v1/query?{query}", timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    figures = [float(series["value"][1]) for series in result]
    # 0/0: no requests yet.
    return max([0.0] + [figure for figure in figures if not math.isnan(figure)])


end = time.monotonic() + duration_s
looks, error = 0, None
while True:
    try:
        seen = value()
    except urllib.error.HTTPError as refused:
        sys.exit(f"gate: Prometheus refuses the expression: {refused.read().decode()[:300]}")
    except (OSError, ValueError, KeyError) as failure:
        error = failure
    else:
        looks += 1
        print(f"gate: {seen:g} (limit {limit:g})", flush=True)
        if seen > limit:
            sys.exit(f"gate: {seen:g} is above {limit:g}: {expression}")
    left = end - time.monotonic()
    if left <= 0:
        break
    time.sleep(min(interval_s, left))
if not looks:
    sys.exit(f"gate: Prometheus never answered: {error}")
