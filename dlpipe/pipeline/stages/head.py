"""Ask about the file: of our own index first, then of the server (HEAD-1, HEAD-2).

A refresh never takes the index's word without the server's (PLAN-6); a repair takes it only for bytes that it has
hashed itself (HEAL-3); a replay asks nobody, and chooses the stored file that the stages behind it go by (JOB-7).
"""

from __future__ import annotations

from dlpipe.core import media, mirrors
from dlpipe.core.errors import Permanent, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar, artifact_uuid, op_key
from dlpipe.core.layout import Equal, extension_for, space_of
from dlpipe.core.model import ArtifactJob, ArtifactRecord, Scope
from dlpipe.core.ports import KnownBlob, Unit
from dlpipe.core.results import DedupeAction, HeadResult, Result, Results
from dlpipe.core.states import Purpose, State
from dlpipe.pipeline.stages import stored
from dlpipe.pipeline.stages.sniff import expectation
from dlpipe.pipeline.stages.stage import Stage, Work, expect, part_of

ARTIFACT_SCHEMA = 1


class Head(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        return {"run": job.run, "url": job.canonical_url}

    def perform(self, work: Work) -> HeadResult:
        job = work.job
        if stored.is_replay(job):
            with self.deps.database.read() as unit:
                return stored.head_of(stored.choose(unit, job, work.results))
        known = self._known(job)
        if known is not None:
            return known
        # Another job may be fetching this very URL: then the server need not be asked again and again.
        self.deps.staging.held(*part_of(self.deps, job))
        return self._ask(job)

    def _known(self, job: ArtifactJob) -> HeadResult | None:
        """The URL's bytes, when this tenant has fetched them, they are still there, and the server still has them."""
        tenant, url = job.scope.tenant_id, job.canonical_url
        with self.deps.database.glance() as glance:
            blob = glance.registry.known_url(tenant, url, None)
            if blob is None:
                return None
            trusted = glance.registry.known_url(tenant, url, self.deps.policy.trust_s) is not None
            mine = glance.registry.result_of(job.job_id, blob.sha256)
        store = self.deps.store
        if not store.owns(blob.pointer) or not self._fits(job, blob):
            return None
        # A size proves nothing where a file of these bytes is known to be at fault.
        rehashed = job.purpose is Purpose.REPAIR or (mine is not None and mine.fault is not None)
        held = (
            store.is_right(blob.pointer, blob.sha256, blob.size) if rehashed else store.holds(blob.pointer, blob.size)
        )
        if not held or not (self._looks_right(job, blob) or (job.purpose is Purpose.REPAIR and mine is not None)):
            return None
        # What a repair is to bring back is these very bytes, whatever the server has by now.
        wanted = trusted or (job.purpose is Purpose.REPAIR and mine is not None)
        said = self._unchanged(job, blob) if job.purpose is Purpose.REFRESH or not wanted else None
        if said is False:
            return None
        if mine is not None and store.owns(mine.storage_pointer):
            place = store.place_at(mine.storage_pointer)
        elif self._may_share(job, blob):
            place = store.place_at(blob.pointer)
        else:
            place = store.place(tenant, job.scope.project_id, blob.sha256, extension_of(job, blob.content_type))
        if place.pointer != blob.pointer:
            if place.space != space_of(blob.pointer):
                return None  # from one kind of store to another nothing is carried
            store.copy(blob.pointer, place)
            if rehashed and not store.is_right(place.pointer, blob.sha256, blob.size):
                return None
        elif not store.keep(place.pointer):
            return None  # it has just been collected
        return HeadResult(
            http_status=None,
            final_url_sha256="",
            content_type=blob.content_type,
            known_sha256=blob.sha256,
            known_pointer=place.pointer,
            known_size=blob.size,
            revalidated=said is True,
            rehashed=rehashed,
        )

    def _may_share(self, job: ArtifactJob, blob: KnownBlob) -> bool:
        """Is the place of these bytes within the job's own dedupe scope, in a store that keeps equal bytes once?"""
        if self.deps.store.equal is not Equal.POINTER or space_of(blob.pointer) != self.deps.store.backend:
            return False
        place, scope_key = self.deps.store.place_at(blob.pointer), self.deps.policy.scope_key
        return scope_key(Scope(place.tenant, place.project)) == scope_key(job.scope)

    def _unchanged(self, job: ArtifactJob, blob: KnownBlob) -> bool | None:
        """Does the server still have these bytes? None: nobody can be asked, and what is held resolves (HUB-5)."""
        try:
            tenant = job.scope.tenant_id
            return self.deps.source.unchanged(job.request_url, blob.etag, blob.last_modified, tenant=tenant) is True
        except Permanent as failure:
            if failure.code != "blocked_offline" or job.purpose is Purpose.REFRESH:
                raise
            return None  # it stays as old as it is

    def _fits(self, job: ArtifactJob, blob: KnownBlob) -> bool:
        """What this job demands of its bytes must hold for bytes that another job fetched."""
        return (
            job.expected_sha256 in (None, blob.sha256)
            and (job.max_bytes is None or blob.size <= job.max_bytes)
            and (job.expected_media_type is None or media.plain(blob.content_type) == job.expected_media_type)
        )

    def _looks_right(self, job: ArtifactJob, blob: KnownBlob) -> bool:
        """A web page that was stored for a job with other expectations, or before any, is not this job's file."""
        expected = expectation(self.deps, job, job.request_url, blob.content_type)
        if expected is None:
            return True
        try:
            with self.deps.store.open(blob.pointer, blob.size) as file:
                return media.wrong(expected, file.read(media.SNIFF_BYTES)) is None
        except Permanent:
            return False  # it has gone since it was looked for

    def _ask(self, job: ArtifactJob) -> HeadResult:
        try:
            facts = self.deps.source.head(job.request_url, tenant=job.scope.tenant_id)
        except StageFailure as failure:
            if not (job.mirrors and mirrors.may_help(failure)):
                raise
            facts = None  # HEAD is a hint; the stream asks this server again, and then the others
        if facts is None:
            return HeadResult(http_status=None, final_url_sha256="")
        return HeadResult(
            http_status=facts.http_status,
            final_url_sha256=facts.final_url_sha256,
            etag=facts.etag,
            last_modified=facts.last_modified,
            date=facts.date,
            accept_ranges=facts.accept_ranges,
            content_length=facts.content_length,
            content_type=facts.content_type,
        )

    def enters(self, result: Result) -> State:
        return State.SKIPPED_DUPLICATE if _known(expect(result, HeadResult)) else State.HEAD_DONE

    def writes(self, result: Result) -> bool:
        head = expect(result, HeadResult)
        return head.stored_uuid is not None or _known(head)

    def record(self, unit: Unit, work: Work, result: Result) -> None:
        head = expect(result, HeadResult)
        if head.stored_uuid is not None:
            unit.registry.add_input(work.job.job_id, head.stored_uuid)
        if head.known_sha256 is None or head.known_pointer is None or head.known_size is None:
            return
        job = work.job
        if head.revalidated:
            unit.registry.see_again(job.scope.tenant_id, job.canonical_url, head.known_sha256)
        if head.rehashed:
            unit.registry.mend(head.known_sha256, head.known_pointer)
        measured = {
            "run": job.run,
            "sha256": head.known_sha256,
            "pointer": head.known_pointer,
            "byte_size": head.known_size,
        }
        mine = unit.registry.result_of(job.job_id, head.known_sha256)
        if mine is not None and mine.storage_pointer == head.known_pointer:
            # An earlier run registered these bytes, perhaps before the job was purged: one record stands for them,
            # and it is the newest again.
            unit.registry.add_artifact(mine)
            unit.registry.note(mine.artifact_uuid, job.job_id, measured)
            return
        # As the index stage would call it: what a job registers goes by its bytes and their place, whoever brought
        # them. A name by the run could come again after a purge, for other bytes.
        made = op_key(OpType.INDEX, job.job_id, sha256=head.known_sha256, pointer=head.known_pointer)
        record = ArtifactRecord(
            artifact_uuid=artifact_uuid(made),
            scope=job.scope,
            artifact_type="file",
            storage_backend=space_of(head.known_pointer),
            storage_pointer=head.known_pointer,
            content_type=head.content_type,
            byte_size=head.known_size,
            sha256=head.known_sha256,
            schema_version=ARTIFACT_SCHEMA,
            created_by_job_id=job.job_id,
        )
        unit.registry.add_artifact(record)
        unit.registry.note(
            record.artifact_uuid,
            job.job_id,
            measured | {"bytes_written": 0, "resumed_from_bytes": 0, "dedupe_action": DedupeAction.SKIPPED.value},
        )


def _known(head: HeadResult) -> bool:
    """Are the URL's bytes held already?"""
    return None not in (head.known_sha256, head.known_pointer, head.known_size)


def extension_of(job: ArtifactJob, content_type: str | None) -> str:
    """The extension that was asked for, else one that the URL or the media type suggests."""
    if job.ext is not None:
        return job.ext
    return extension_for(job.canonical_url.partition("?")[0], content_type)
