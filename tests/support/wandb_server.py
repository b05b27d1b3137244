"""Answers wandb as its server does, as far as a run needs it, in a process of its own.

Its arguments are a port and a file. The file has the rows of the history by their number,
as a server keeps them: a row with a number that is there replaces the one before.
"""

from __future__ import annotations

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OWNER = {"id": "E", "name": "e"}


class Server(ThreadingHTTPServer):
    """Keeps the history of one run."""

    def __init__(self, port: int, path: Path) -> None:
        super().__init__(("127.0.0.1", port), Answers)
        self.path = path
        self.rows = json.loads(path.read_text()) if path.exists() else {}

    def take(self, stream: dict[str, Any]) -> None:
        """Keep rows, each at the number that wandb gives it."""
        history = stream.get("files", {}).get("wandb-history.jsonl")
        if history:
            for number, row in enumerate(history["content"], history["offset"]):
                self.rows[str(number)] = json.loads(row)
            self.path.write_text(json.dumps(self.rows))

    def run(self, name: str) -> dict[str, Any]:
        """Return wandb's answer about a run."""
        count = len(self.rows)
        tail = [json.dumps({"_step": count - 1, "_runtime": 1})] if count else []
        project = {"id": "P", "name": "p", "entity": OWNER}
        texts = dict.fromkeys(["config", "summaryMetrics"], "{}")
        lines = {"historyLineCount": count, "logLineCount": 0, "eventsLineCount": 0}
        tails = {"historyTail": json.dumps(tail), "eventsTail": "[]"}
        about = {"id": "B", "name": name, "displayName": name, "tags": []}
        more = {"project": project, "wandbConfig": '{"t": 1}'}
        return {**about, **texts, **lines, **tails, **more}

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """Answer a query."""
        name = given.get("name", "")
        if "upsertBucket" in query:
            return {"upsertBucket": {"bucket": self.run(name), "inserted": not self.rows}}
        if "RunResumeStatus" in query:
            bucket = self.run(name) if self.rows else None
            return {"model": {"id": "P", "name": "p", "entity": OWNER, "bucket": bucket}}
        if "createRunFiles" in query:
            here = f"http://127.0.0.1:{self.server_port}/put/"
            files = [{"name": file, "uploadUrl": here + file} for file in given["files"]]
            return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}
        return {}


class Answers(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        """Answer anything."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        told: dict[str, Any] = {}
        if self.path.endswith("/graphql"):
            asked = json.loads(body)
            told = {"data": self.server.answer(asked["query"], asked["variables"] or {})}
        elif self.path.endswith("/file_stream"):
            self.server.take(json.loads(body))
        text = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST

    def log_message(self, *_: object) -> None:
        """Be quiet."""


if __name__ == "__main__":
    Server(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
