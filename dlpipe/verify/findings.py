"""What a check can find: one stable code and one plain sentence each. docs/operations.md lists them."""

from __future__ import annotations

from dataclasses import dataclass

FINDINGS: dict[str, str] = {
    # The files of the store.
    "file_missing": "the ledger says that the file is there, and it is not",
    "file_size": "the file has another size than the ledger says",
    "file_damaged": "the bytes of the file do not hash to its name",
    "file_writable": "the file may be written to",
    "file_not_plain": "a symlink, or something else that is no plain file, stands in the store",
    "file_unreadable": "the file cannot be read",
    "file_unknown": "no row knows the file",
    "mark_wrong": "the file is marked as missing or damaged, and it is there and right",
    "name_not_hash": "a file that no row knows has a name that is not the hash of its bytes",
    # The staging folder.
    "stray_part": "a part is staged that no job wants",
    "stray_temp": "a temporary file was left behind in the staging folder",
    "staging_blocked": "something else stands where a folder for parts belongs, or it cannot be read",
    # Jobs.
    "job_without_detail": "the job has no row that says what it is to do",
    "detail_without_job": "a row belongs to a job that does not exist",
    "job_key_wrong": "the keys of the job do not follow from what it asks for",
    "job_lost": "the job is not at an end, and nothing will ever take it up",
    "job_unfinished": "the job is not at an end, and nothing is running",
    "state_status": "the status of the job does not belong to its state",
    "state_ops": "the recorded ops do not belong to the state of the job",
    "due_and_terminal": "the job is at an end, and still due or in flight",
    "lease_stale": "the row names a holder who is gone",
    "end_not_noted": "the job is done, and its row does not say so in full",
    "dead_letter_without_error": "the job failed for good, and its row does not say why or when",
    # The ledger of effects.
    "fence_wrong": "an op carries a fence that its job has not reached",
    "op_started_twice": "two ops were started under one fence",
    "op_recorded_twice": "two results of one stage are recorded in one run",
    "op_unfinished": "the job is at an end, and one of its ops still counts as under way",
    "op_unreadable": "the stored result of an op cannot be read",
    "op_results_differ": "the results of two stages contradict each other",
    "op_without_effect": "an op is finished, and what it records did not happen",
    "effect_without_op": "an artifact is registered, and nothing on record made it",
    # What is registered.
    "artifact_without_job": "the artifact belongs to no job",
    "artifact_pointer": "the pointer of the artifact does not follow from its owner and its hash",
    "scope_differs": "two rows that belong together have different owners",
    "result_missing": "the job is done, and has no result",
    "result_pointer": "the result of the job is not what its ops recorded",
    "published_twice": "the job has published the same bytes twice",
    "manifest_missing": "the artifact has no row in the manifest",
    "manifest_wrong": "the manifest says other things of the artifact than its own row",
    "hash_index_wrong": "the index of hashes does not agree with the artifacts",
    "url_index_wrong": "the index of URLs does not agree with the artifacts",
    "library_wrong": "the library does not agree with the downloads",
}

NOTES: dict[str, str] = {
    "link_apart": "two files share no bytes any more although they were linked",
    "file_spare": "no artifact names the file, and its bytes are known",
    "file_given_up": "the file of an earlier result is lost, and marked as such",
    "set_aside": "a damaged file was set aside here",
}
"""Worth knowing, and no fault: these do not count."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it has to be.

    `subject` is a job id, a key, or a path below the store's root; never a URL, which may hold a secret.
    """

    code: str
    subject: str
    detail: str = ""
    job_id: str | None = None
    path: str | None = None

    @property
    def is_note(self) -> bool:
        return self.code in NOTES

    @property
    def sentence(self) -> str:
        return FINDINGS.get(self.code) or NOTES[self.code]

    def __str__(self) -> str:
        more = f" ({self.detail})" if self.detail else ""
        return f"{self.code} {self.subject}: {self.sentence}{more}"
