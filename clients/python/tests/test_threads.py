"""Threads that share calls. The sender is a function here."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tollgate import Unavailable
from tollgate.threads import MAX_ALONE, ThreadCoalescer
