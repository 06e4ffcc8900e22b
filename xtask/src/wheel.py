"""Writes a wheel: a zip archive with a list of its files and their digests.

Reads what goes into it from standard input, as wheel.rs says it. Wants Python 3.8 and its own library.
Source: PyPA, binary distribution format 1.0.
"""

import base64
import hashlib
import json
import sys
import zipfile

asked = json.load(sys.stdin)
record = []
# Without a time of its own, each file has the first that the format knows: the same files make the
# same bytes.
with zipfile.ZipFile(asked["wheel"], "w", zipfile.ZIP_DEFLATED, compresslevel=asked["level"]) as archive:

    def put(name, contents, mode):
        entry = zipfile.ZipInfo(name)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        archive.writestr(entry, contents)

    for entry in asked["entries"]:
        if "file" in entry:
            with open(entry["file"], "rb") as file:
                contents = file.read()
        else:
            contents = entry["text"].encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
        record.append(f"{entry['name']},sha256={digest},{len(contents)}\n")
        put(entry["name"], contents, entry["mode"])
    # The list does not list itself.
    put(asked["record"], "".join(record) + f"{asked['record']},,\n", 0o644)
