"""Puts a copy in the place of a member's store; a crash at any moment leaves one of the two.

    incoming/   a copy as it comes in; worth nothing until it is verified
    adopted/    a verified copy that is this member's own: from here on it counts
    replaced/   the store that was there before, until the copy is in its place

The rule it keeps: each step is one rename. `finish` goes on wherever an earlier process was.
"""

import json
import shutil
from pathlib import Path

from ...certifier.errors import GroupcertError
from ...certifier.storage.info_store import CertificationInfoStore
from ...certifier.storage.store import ROCKSDB_FOLDER, Family, Store, StoreIdentity
from ..certification_log.outbox import forget
from ..errors.recovery import CorruptCopy
from ..host.sync import sync
from .manifest import CopyManifest

_INCOMING, _ADOPTED, _REPLACED = "incoming", "adopted", "replaced"


def begin(data_folder: Path) -> Path:
    """Returns an empty folder for a copy that comes in; removes that of an earlier process."""
    give_up(data_folder)
    incoming = data_folder / _INCOMING
    incoming.mkdir(parents=True)
    return incoming


def give_up(data_folder: Path) -> None:
    """Removes what has come in."""
    shutil.rmtree(data_folder / _INCOMING, ignore_errors=True)


def adopt(data_folder: Path, manifest: CopyManifest, identity: StoreIdentity) -> None:
    """Makes the copy that has come in, and was verified, this member's own.

    Raises:
        CorruptCopy: It is another group's, or not of the position that its manifest says.
    """
    incoming = data_folder / _INCOMING
    try:
        with Store(incoming, identity, adopt=True) as store:
            saved = store.get(Family.META, CertificationInfoStore.CHECKPOINT_KEY)
            forget(store)  # Its certification log is the donor's.
    except GroupcertError as error:
        raise CorruptCopy(path=str(incoming), problem=str(error)) from error
    digest = json.loads(saved or b"{}").get("digest", "")
    if digest != manifest.certification_digest:
        expected = manifest.certification_digest
        problem = f"its certification info has the digest {digest}, {expected} was written"
        raise CorruptCopy(path=str(incoming), problem=problem)
    adopted = data_folder / _ADOPTED
    shutil.rmtree(adopted, ignore_errors=True)
    # From the rename on the copy counts, so all of it must be on the disk before.
    sync(incoming)
    incoming.rename(adopted)
    sync(data_folder)


def is_adopted(data_folder: Path) -> bool:
    """Returns whether a copy waits for `finish`."""
    return (data_folder / _ADOPTED / ROCKSDB_FOLDER).is_dir()


def finish(data_folder: Path) -> bool:
    """Puts an adopted copy in place; the store must not be open. Returns whether there was one."""
    adopted, replaced = data_folder / _ADOPTED, data_folder / _REPLACED
    store, copy = data_folder / ROCKSDB_FOLDER, adopted / ROCKSDB_FOLDER
    found = is_adopted(data_folder)
    if found:
        if store.is_dir():
            # Left by an earlier swap; a rename needs the name free.
            shutil.rmtree(replaced, ignore_errors=True)
            store.rename(replaced)
        # After a crash here there is no store, and `adopted/` is still there: the next start goes
        # on.
        copy.rename(store)
        sync(data_folder)
    for left in (replaced, adopted):
        shutil.rmtree(left, ignore_errors=True)
    return found
