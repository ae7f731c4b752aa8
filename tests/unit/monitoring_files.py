"""The files of the monitoring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "pubsub/monitoring"

DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
