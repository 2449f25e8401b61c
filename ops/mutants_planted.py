"""The planted mutants: what each guard looks like, what it looks like broken, and which tests must notice."""

from __future__ import annotations

from ops.mutant import Mutant

_RUNNER = "dlpipe/pipeline/runner.py"
_ENDING = "dlpipe/pipeline/ending.py"
_SQL_ENDINGS = "dlpipe/db/endings.py"
_LOCAL = "dlpipe/store/local.py"
_LINKS = "dlpipe/store/links.py"
_IMPRINT = "dlpipe/store/imprint.py"
_STREAM = "dlpipe/pipeline/stages/stream.py"
_PART = "dlpipe/store/part.py"
_PART_FILE = "dlpipe/store/partfile.py"
_JOBS = "dlpipe/db/jobs.py"
_GUARDS = "dlpipe/db/guards.py"
_LEDGER = "dlpipe/db/ledger.py"
_BACKLOG = "dlpipe/db/backlog.py"
_LOCK = "dlpipe/lease/lock.py"
_CRASH = "tests/crash/test_crash_points.py"
_ORDER = "tests/integration/test_power_cut_order.py"
_OVERTAKEN = "tests/contract/test_overtaken.py"
_ENDINGS = "tests/contract/test_endings.py"
_REGISTERING = "tests/contract/test_endings_that_register.py"
_CLAIMED = "tests/contract/test_staging.py"
_IN_HAND = "tests/unit/pipeline/test_in_hand.py"
_WISHES = "dlpipe/db/wishes.py"
_FOREIGN = "tests/contract/test_foreign_tenants.py"
_TRANSPORT = "tests/unit/inbox/test_transport.py"
_MALFORMED = "tests/integration/test_malformed_messages.py"

PLANTED = (
    # ── fence and lease ──
    Mutant(
        "fence-check-removed", "a late worker's advance, failure or hand-back counts", _GUARDS,
        "        _T.fence == MY_FENCE,\n        # Whoever", "        # Whoever",
        (_OVERTAKEN, "tests/contract/test_jobs.py"),
    ),
    Mutant(
        "fence-not-raised-by-claim", "two holders share a fence", _JOBS,
        "            fence=_T.fence + 1,\n", "", ("tests/contract/test_jobs.py",),
    ),
    Mutant(
        "fence-not-raised-by-orphan", "what a dead holder began counts as under way", _BACKLOG,
        "                fence=_T.fence + 1,  # else the dead holder's op would count as under way\n", "",
        ("tests/contract/test_dispatch.py", "tests/unit/pipeline/test_reconcile.py"),
    ),
    Mutant(
        "fence-not-raised-by-cancel", "what is canceled counts as under way", _WISHES,
        '                "fence": _T.fence + 1,\n                **IDLE,\n                "due_at": None,',
        '                **IDLE,\n                "due_at": None,', ("tests/contract/test_jobs_owner.py",),
    ),
    Mutant(
        "fence-not-raised-by-pause", "what is paused counts as under way", _WISHES,
        '{"fence": _T.fence + 1, **IDLE, "due_at": sa.func.coalesce', '{**IDLE, "due_at": sa.func.coalesce',
        ("tests/contract/test_pause.py",),
    ),
    Mutant(
        "fence-not-raised-by-reopen", "a job is reopened twice for one loss", _BACKLOG,
        "                fence=_T.fence + 1,\n                state=sa.case(*((_T.state == state.value, found.value)",
        "                state=sa.case(*((_T.state == state.value, found.value)", ("tests/contract/test_reopen.py",),
    ),
    Mutant(
        "finish-without-fence", "a late worker's result is recorded", _LEDGER,
        ".where(_O.op_key == key, _O.fence == fence)", ".where(_O.op_key == key)",
        ("tests/contract/test_ledger.py",),
    ),
    Mutant(
        "start-without-fence", "a late worker takes an op back from its new holder", _LEDGER,
        "            where=_O.fence <= _FENCE,\n", "", (_OVERTAKEN,),
    ),
    Mutant(
        "renew-without-fence", "an overtaken holder keeps the mirror in the row alive", _JOBS,
        ".where(_T.job_id == job_id, _T.fence == fence, _T.lease_owner.is_not(None))",
        ".where(_T.job_id == job_id, _T.lease_owner.is_not(None))", (_OVERTAKEN,),
    ),
    Mutant(
        "expired-lease-renewable", "a lease whose time is over here still counts", "dlpipe/lease/held.py",
        "if self._lost is None and self._clock() >= self._until:", "if False:",
        ("tests/unit/lease/test_heartbeat.py",),
    ),
    Mutant(
        "foreign-lease-renewable", "a lock is extended without looking whose it is", _LOCK,
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end\nreturn 0",
        "return redis.call('PEXPIRE', KEYS[1], ARGV[2])", ("tests/contract/test_leases.py",),
    ),
    Mutant(
        "foreign-lease-released", "a lock is deleted without looking whose it is", _LOCK,
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end\nreturn 0",
        "return redis.call('DEL', KEYS[1])", ("tests/contract/test_leases.py",),
    ),
    Mutant(
        "lock-without-nx", "two workers are given the same lease", _LOCK,
        "redis.set(key, token, nx=True, px=ttl_ms)", "redis.set(key, token, px=ttl_ms)",
        ("tests/contract/test_leases.py",),
    ),
    Mutant(
        "lease-not-checked-between-chunks", "a worker goes on writing after its lease is lost",
        "dlpipe/pipeline/stages/body.py", "                self._lease.check()\n", "",
        ("tests/unit/pipeline/test_runner.py", "tests/unit/pipeline/test_two_at_once.py"),
    ),
    Mutant(
        "live-lease-reaped", "reconcile takes a job from a holder whose lock still lives", "dlpipe/core/recovery.py",
        "if not facts.owner_dead and facts.live:", "if False:", ("tests/unit/pipeline/test_reconcile.py",),
    ),
    # ── the ledger ──
    Mutant(
        "state-before-effect", "FINALIZED is entered before the file has its name", _RUNNER,
        "        result = (stage.probe(work) if work.op.seen else None) or stage.perform(work)\n",
        """        if row.name == "finalize":
            with deps.database.write() as unit:
                unit.jobs.advance(work.job, row, State.FINALIZED)
            crash_point("finalize.before_link")
        result = (stage.probe(work) if work.op.seen else None) or stage.perform(work)
""",
        (f"{_CRASH}::test_whoever_is_killed_the_job_ends_once", "-k", "finalize.before_link and sqlite"),
    ),
    Mutant(
        "finished-op-performed-again", "a doubled message repeats the effect", _RUNNER,
        "        if op.prior is not None and op.prior_run == run_no:\n", "        if False:\n",
        ("tests/unit/pipeline/test_runner.py", "tests/unit/pipeline/test_two_at_once.py", _CRASH),
    ),
    Mutant(
        "started-op-counts-as-done", "a started finalize is taken for a finished one",
        "dlpipe/pipeline/stages/finalize.py",
        "if not right(place.pointer, streamed.sha256, streamed.size):", "if False:",
        (_CRASH, "-k", "finalize.claimed and sqlite"),
    ),
    Mutant(
        "probe-trusts-existence", "the probe looks at a file's size and not at its bytes",
        "dlpipe/pipeline/stages/finalize.py",
        "if not right(place.pointer, streamed.sha256, streamed.size):",
        "if not store.holds(place.pointer, streamed.size):",
        ("tests/crash/test_cells.py", "-k", "damaged"),
    ),
    Mutant(
        "op-key-without-run", "a later run replays what the network said in an earlier one",
        "dlpipe/pipeline/stages/head.py", 'return {"run": job.run, "url": job.canonical_url}',
        'return {"url": job.canonical_url}', ("tests/unit/pipeline",),
    ),
    Mutant(
        "record-in-two-transactions", "the state is on record, and the result is not", _ENDING,
        '    _recording(row)\n    if not settle_alone(deps.database, ended := hand.ending()):\n',
        "    ended = hand.ending()\n"
        "    settle(deps.database, lambda unit: unit.jobs.advance(ended.job, ended.stage, ended.entered))\n"
        '    _recording(row)\n    if not settle_alone(deps.database, ended):\n',
        (_CRASH, "-k", "recording and sqlite"),
    ),
    Mutant(
        "second-result-replaces-first", "an op that is finished takes another result", _LEDGER,
        "\"result_json\": sa.func.coalesce(_O.result_json, result),",
        "\"result_json\": result,", ("tests/contract/test_ledger.py",),
    ),
    # ── in one hand ──
    Mutant(
        "ending-without-fence", "an overtaken holder ends its claim, and claims onward", _GUARDS,
        "        _T.fence == MY_FENCE,\n        # Whoever", "        # Whoever",
        (_ENDINGS, "-k", "is_over and sqlite"),
    ),
    Mutant(
        "ending-of-a-claim-given-back", "a claim that was handed back is ended all the same", _GUARDS,
        "        _T.lease_owner.is_not(None),\n        _T.due_at", "        _T.due_at",
        (_ENDINGS, "-k", "is_over and free and sqlite"),
    ),
    Mutant(
        "ending-without-its-op", "an op that somebody else has by now ends with our claim, in one statement",
        _SQL_ENDINGS, "entered = _moved(path, onward).where(held)", "entered = _moved(path, onward)",
        (_ENDINGS, "-k", "is_over and take_op and postgresql"),
    ),
    Mutant(
        "ending-without-its-op-stepwise", "an op that somebody else has by now ends with our claim, step by step",
        _SQL_ENDINGS, "if finished(self._connection, values).rowcount == 0:",
        "finished(self._connection, values)\n        if False:",
        (_ENDINGS, "-k", "is_over and take_op and sqlite"),
    ),
    Mutant(
        "paused-job-claimed-onward", "a paused job is gone on with", _SQL_ENDINGS,
        "        moved = moved.where(_T.paused_at.is_(None))\n", "", (_ENDINGS, "-k", "paused and sqlite"),
    ),
    Mutant(
        "onward-under-the-same-fence", "a claim that is made with an end shares its fence", _SQL_ENDINGS,
        'values |= {"fence": _T.fence + 1, "state"', 'values |= {"state"', (_ENDINGS, "-k", "sqlite"),
    ),
    Mutant(
        "lost-answer-not-looked-for", "an ending that got through is told as lost", _SQL_ENDINGS,
        "again._is_written(ending) or _stands(connection, ending)", "again._is_written(ending)",
        (_ENDINGS, "-k", "answer_is_lost"),
    ),
    Mutant(
        "look-forgets-the-op", "a stream that was handed back looks like one that is recorded", _SQL_ENDINGS,
        "        .where(_O.state == op_state)\n", "", (_ENDINGS, "-k", "handed and stream"),
    ),
    Mutant(
        "written-behind-the-look", "an ending is told as recorded, and undone", _SQL_ENDINGS,
        "            return again._may_not(ending)", "            return again.end(ending)",
        (_ENDINGS, "-k", "possible_again"),
    ),
    Mutant(
        "handed-back-by-fence-alone", "who guesses a fence gives back somebody else's claim", _JOBS,
        ".where(_T.lease_owner == _MY_TOKEN)",
        '.where(sa.func.coalesce(_MY_TOKEN, "").is_not(None))',
        (_ENDINGS, "-k", "handed_back and sqlite"),
    ),
    Mutant(
        "guessed-fence-not-given-back", "a claim onward of which nobody heard is held until it runs out", _RUNNER,
        "deps.unreturned.extend(_under_either_fence(work.job))",
        "deps.unreturned.append(work.job)", (_IN_HAND, "-k", "nobody_heard"),
    ),
    Mutant(
        "moved-fence-counts-as-overtaken", "a beat takes the lease from a holder that has claimed onward",
        "dlpipe/lease/heartbeat.py", " and lease.fence == claims[lease.token][1]", "",
        ("tests/unit/lease/test_heartbeat.py",),
    ),
    Mutant(
        "goes-on-without-leave", "a lease that is lost, or whose process is to end, may be gone on under",
        "dlpipe/lease/held.py", "return not (self._ending or self._last() or self.is_lost())", "return True",
        ("tests/unit/lease/test_heartbeat.py",),
    ),
    Mutant(
        "goes-on-unasked", "a process that is to end begins with the next stage", _ENDING,
        "work.op.prior is None and work.lease.may_go_on()", "work.op.prior is None",
        (_IN_HAND, "-k", "process_that_is_to_end"),
    ),
    Mutant(
        "goes-on-from-a-replayed-op", "what is behind an op goes by another result than the one that stands", _ENDING,
        "work.op.prior is None and work.lease.may_go_on()", "work.lease.may_go_on()",
        (_IN_HAND, "-k", "earlier_run_has_finished"),
    ),
    Mutant(
        "known-op-claimed-onward", "an op that somebody has begun is started as if nobody had", _ENDING,
        "        if results.knows(op_key):\n            return None", "        if False:\n            return None",
        (_IN_HAND, "-k", "refresh or replay"),
    ),
    Mutant(
        "joined-failure-fails-the-front", "what fails behind a stage takes its result away", _ENDING,
        "        except Exception:\n            return None  # it",
        "        except ZeroDivisionError:\n            return None  # it",
        (_IN_HAND, "-k", "joined"),
    ),
    Mutant(
        "another-step-taken", "a step of another job or run is carried out as if it were this one's", "dlpipe/hand.py",
        'list(step["args"]) != [job_id, run] or ', "", ("tests/unit/test_hand.py",),
    ),
    Mutant(
        "another-queue-s-step-taken", "a worker does what is for the workers of another queue", "dlpipe/hand.py",
        'if not _is_taken_here(app, str(step["task"]), step["options"].get("queue")):', "if False:",
        ("tests/unit/test_hand.py",),
    ),
    Mutant(
        "registered-the-other-way-round", "a registration and a backfill block each other", "dlpipe/db/registry.py",
        "return Ready(sa.select(*is_new).add_cte(*others))",
        "return Ready(sa.select(*is_new).add_cte(*others[::-1]))",
        ("tests/contract/test_register.py", "-k", "order"),
    ),
    Mutant(
        "first-copy-unasked", "who comes at the same moment registers the same bytes as a first copy",
        _SQL_ENDINGS, "is_first = 1 // sa.select(sa.func.count())", "is_first = 1 // sa.select(1 + sa.func.count())",
        (_REGISTERING, "-k", "waits"),
    ),
    Mutant(
        "known-copy-unseen", "bytes that somebody has are registered as a first copy", _SQL_ENDINGS,
        "if new is not None and registry.first_copy(new.dedupe_scope, new.record.sha256) is not None:",
        "if new is not None and registry.first_copy(new.dedupe_scope, '') is not None:",
        (_REGISTERING, "-k", "already and sqlite"),
    ),
    Mutant(
        "registered-without-the-claim", "who was overtaken registers his file", "dlpipe/db/registering.py",
        "        rows = sa.select(*told.values()).select_from(moved)\n",
        "        return insert.values(told)\n        rows = sa.select(*told.values()).select_from(moved)\n",
        (_REGISTERING, "-k", "overtaken and postgresql"),
    ),
    # ── the part in one hand ──
    Mutant(
        "written-part-begun-again", "a file that somebody may still write into is taken for a new one",
        _PART, "        self._is_new, self._is_more = False, ", "        self._is_more = ",
        (_CLAIMED, "-k", "left_empty_is_not_made_again"),
    ),
    Mutant(
        "found-part-is-new", "a file that another claim made is taken for this one's", "dlpipe/store/partfile.py",
        "                return fd, False\n", "                return fd, True\n",
        (_CLAIMED, "-k", "killed_claim_left_empty"),
    ),
    Mutant(
        "goes-on-with-a-part-that-is-gone", "who was overtaken goes on with the part", "dlpipe/store/partfile.py",
        "        self._check_ours()\n        self._fence = fence\n", "        self._fence = fence\n",
        (_CLAIMED, "-k", "who_goes_on"),
    ),
    # ── connections that are used again ──
    Mutant(
        "head-and-get-share", "a connection that answered HEAD carries a GET", "dlpipe/net/connection.py",
        'host, ask.method == "HEAD")', "host, False)",
        ("tests/unit/net/test_pool.py", "-k", "same_tenant_and_kind"),
    ),
    Mutant(
        "tenants-share-connections", "a connection of one tenant carries another's request", "dlpipe/net/connection.py",
        "Use(ask.tenant, ask.origin", 'Use("", ask.origin',
        ("tests/unit/net/test_pool.py", "-k", "same_tenant_and_kind"),
    ),
    Mutant(
        "surplus-marks-nothing", "an origin that sent surplus is reused", "dlpipe/net/pool.py",
        "        self._marks.mark(origin, why)\n", "",
        ("tests/unit/net/test_pool.py", "-k", "late_bytes"),
    ),
    Mutant(
        "idle-surplus-unseen", "bytes on an idle connection are not looked for", "dlpipe/net/wire.py",
        "(surplus > 0 or self._has_arrived())", "surplus > 0",
        ("tests/unit/net/test_pool.py", "-k", "late_bytes"),
    ),
    Mutant(
        "malformed-is-believed", "a malformed head on a reused connection is judged", "dlpipe/net/connection.py",
        "if reused and (broken or isinstance(error, Permanent)):", "if reused and broken:",
        ("tests/unit/net/test_pool.py", "-k", "impossible_head_on_a_reused"),
    ),
    Mutant(
        "refusal-is-believed", "a refusal on a reused connection is judged", "dlpipe/net/connection.py",
        "if wanted is None and status >= 200:", "if False:",
        ("tests/unit/net/test_pool.py", "-k", "refusal_on_a_reused"),
    ),
    Mutant(
        "reused-fails-for-good", "a reused connection's answer fails a job for good", "dlpipe/pipeline/stages/fetch.py",
        "            if self._doubtful is None or failure.code not in _MAY_BE_ANOTHERS:\n                raise\n",
        "            raise\n",
        ("tests/unit/pipeline/test_reused_answers.py",),
    ),
    Mutant(
        "early-bytes-are-an-answer", "what came before the request was there is its answer", "dlpipe/net/wire.py",
        "!= bytes(4)\n        except", "is None\n        except",
        ("tests/unit/net/test_wire.py", "-k", "before_the_request_is_there"),
    ),
    Mutant(
        "rewind-in-memory-only", "bytes that were judged wrong are gone on with by the next run", _PART,
        "is not to go on from these bytes\n                self._write_side()\n",
        "is not to go on from these bytes\n                pass\n",
        ("tests/unit/pipeline/test_reused_answers.py", "-k", "judged_wrong or wrong_digest"),
    ),
    Mutant(
        "refusal-costs-the-part", "a refusal throws held bytes away as an earlier answer was reused",
        "dlpipe/pipeline/stages/fetch.py", " or failure.code not in _MAY_BE_ANOTHERS:", ":",
        ("tests/unit/pipeline/test_reused_answers.py", "-k", "not_asked_for_again"),
    ),
    Mutant(
        "dotted-host-shares", "a host with a closing dot shares connections with the one without",
        "dlpipe/net/connection.py",
        "ask.origin, host, ask.method", 'ask.origin, "", ask.method',
        ("tests/unit/net/test_pool.py", "-k", "closing_dot"),
    ),
    Mutant(
        "doubt-without-a-turn", "a doubted answer waits for its turn for ever under a low rate",
        "dlpipe/net/limiter.py",
        "        if place.bounds.window_ms > _PATIENT_MS:\n", "        if False:\n",
        ("tests/unit/net/test_pool.py", "-k", "have_to_wait"),
    ),
    Mutant(
        "second-answer-passes", "a reused connection may bring two answers", "dlpipe/net/connection.py",
        "if self._over and self.is_reused and self._lent.has_surplus():", "if False:",
        ("tests/unit/net/test_pool.py", "-k", "brings_more"),
    ),
    Mutant(
        "bare-line-feed", "a chunk's line may end with a bare LF", "dlpipe/net/chunks.py",
        'if not line.endswith(b"\\r"):', "if False:",
        ("tests/unit/net/test_chunks.py",),
    ),
    Mutant(
        "any-version", "an answer of any version of HTTP is taken", "dlpipe/net/wire.py",
        'rb"HTTP/1\\.[01] ([0-9]{3})(?=[ \\r\\n]|\\Z)"', 'rb"HTTP/[0-9]\\.[0-9] ([0-9]{3})"',
        ("tests/unit/net/test_wire.py", "-k", "refused_heads"),
    ),
    # ── the row ──
    Mutant(
        "any-state-on-record", "a stage enters a state that the table does not give it", _GUARDS,
        "        _T.due_at.is_(None),\n        in_states(allowed),\n", "        _T.due_at.is_(None),\n",
        ("tests/contract/test_jobs.py",),
    ),
    Mutant(
        "start-without-due", "a run begins that nobody wants any more", _JOBS,
        "begins = sa.and_(_T.run == run - 1, _T.due_at.is_not(None), in_states",
        "begins = sa.and_(_T.run == run - 1, in_states",
        ("tests/contract/test_reopen.py", "tests/contract/test_jobs.py"),
    ),
    Mutant(
        "paused-job-claimed", "a paused job is worked on", _JOBS,
        "_T.job_id == job_id, _T.paused_at.is_(None), lease_free()", "_T.job_id == job_id, lease_free()",
        ("tests/contract/test_pause.py",),
    ),
    Mutant(
        "reopen-without-fence", "what a run has brought since is brought again", _BACKLOG,
        "                _T.fence == fence,\n                lease_free(),\n", "                lease_free(),\n",
        ("tests/contract/test_reopen.py",),
    ),
    Mutant(
        "reopen-under-a-holder", "a job is reopened while somebody holds it", _BACKLOG,
        "                _T.fence == fence,\n                lease_free(),\n", "                _T.fence == fence,\n",
        ("tests/contract/test_reopen.py",),
    ),
    Mutant(
        "reopen-over-a-wish", "a refresh that has not begun becomes a repair", _BACKLOG,
        "                sa.or_(_T.due_at.is_(None), ~in_states(stay)),\n", "", ("tests/contract/test_reopen.py",),
    ),
    Mutant(
        "published-at-not-cleared", "a job that waits for its next run counts as in flight for ever", _GUARDS,
        'IDLE: Mapping[str, None] = {**FREE, "published_at": None}', "IDLE: Mapping[str, None] = {**FREE}",
        ("tests/contract/test_jobs.py", "tests/contract/test_dispatch.py", "tests/unit/pipeline/test_runner.py"),
    ),
    Mutant(
        "due-at-not-cleared", "a run that has begun is begun again", _JOBS,
        "            due_at=None,\n        )\n        .returning(*_T",
        "        )\n        .returning(*_T", ("tests/contract/test_jobs.py",),
    ),
    Mutant(
        "postponed-uses-an-attempt", "a full disk uses up the attempts of a job", "dlpipe/core/recovery.py",
        "failure.message, debug_id, after_s, False, keeps, failure.anew)",
        "failure.message, debug_id, after_s, True, keeps, failure.anew)",
        ("tests/unit/core/test_recovery.py",),
    ),
    # ── files ──
    Mutant(
        "no-directory-fsync", "the ledger says so before the name is durable", _LOCAL,
        '            os.fsync(where)\n            crash_point("finalize.after_fsync")',
        '            crash_point("finalize.after_fsync")', (_ORDER,),
    ),
    Mutant(
        "no-file-fsync", "the name is durable before the bytes and the mode are", _LOCAL,
        "            os.fsync(fd)  # the bytes last before their name does\n            crash_point(\"finalize",
        "            crash_point(\"finalize", (_ORDER,),
    ),
    Mutant(
        "no-fsync-of-a-new-folder", "a new folder's own name may be lost", "dlpipe/store/folders.py",
        "another worker that made it may not have come to this line.\n    os.fsync(parent)\n",
        "another worker that made it may not have come to this line.\n", (_ORDER,),
    ),
    Mutant(
        "found-file-not-settled", "a name that a dead worker gave is vouched for without an fsync",
        "dlpipe/pipeline/stages/finalize.py", "        self.deps.store.settle(place.pointer)\n", "", (_ORDER,),
    ),
    Mutant(
        "overwrite-on-link", "publishing takes the place of the file that stands there", _LINKS,
        "        return False\n    except FileNotFoundError as error:\n        if Path(",
        "        os.unlink(name, dir_fd=where)\n"
        "        os.link(f\"/proc/self/fd/{fd}\", name, dst_dir_fd=where, follow_symlinks=True)\n"
        "    except FileNotFoundError as error:\n        if Path(",
        ("tests/contract/test_blob_store.py",),
    ),
    Mutant(
        "overwrite-on-rename", "where there are no links, a rename takes the place of a file", _LINKS,
        "_RENAME_NOREPLACE = 1", "_RENAME_NOREPLACE = 0",
        ("tests/contract/test_blob_links.py", "tests/contract/test_blob_store_links.py"),
    ),
    Mutant(
        "hash-not-compared", "what is published need not hash to its name", _LOCAL,
        "if (digest, found) != (place.sha256, size) or", "if found != size or", ("tests/contract/test_blob_store.py",),
    ),
    Mutant(
        "rehash-never", "what nobody vouches for is published unread", _LOCAL,
        "if self._rehash is Rehash.ALWAYS or not part.is_as_hashed(place.sha256, size):", "if False:",
        ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "rehash-setting-unheard", "finalize.rehash = always is auto", _LOCAL,
        "if self._rehash is Rehash.ALWAYS or not part", "if not part", ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-not-compared", "a part that was touched passes for untouched", _IMPRINT,
        "is_local(fd) and imprint == _of(fd, imprint.sha256)", "is_local(fd)", ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-anywhere", "a network file system's times are believed", _IMPRINT,
        "is_local(fd) and imprint ==", "imprint ==", ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-of-any-boot", "what was durable before a power cut counts after it", _IMPRINT,
        "    boot, found = _boot(), os.fstat(fd)\n", '    boot, found = "", os.fstat(fd)\n',
        ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-without-ctime", "bytes written under a restored mtime pass", _IMPRINT,
        "found.st_mtime_ns, found.st_ctime_ns, boot", "found.st_mtime_ns, 0, boot",
        ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-without-inode", "another file of the same size and times passes", _IMPRINT,
        "found.st_dev, found.st_ino,", "found.st_dev, 0,", ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-within-a-tick", "a write in the same step of the clock is not seen", _IMPRINT,
        " or not _has_passed(found.st_ctime_ns)", "", ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-of-another-moment", "what changed while the clock was waited for passes", _IMPRINT,
        "imprint is not None and imprint.ctime_ns == found.st_ctime_ns", "imprint is not None",
        ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "imprint-of-another-hash", "an untouched part gets a name that is not its hash", _PART,
        "(found.sha256, found.size) == (sha256, size) and ", "",
        ("tests/contract/test_untouched.py",),
    ),
    Mutant(
        "whole-part-believed", "a forged part is published because its sidecar fits it", _STREAM,
        "all_held=is_whole and _is_known(part, work)", "all_held=is_whole",
        ("tests/unit/pipeline/test_stream_forged.py",),
    ),
    Mutant(
        "whole-part-of-any-hash", "a part is known by its validators, whatever its bytes are", _STREAM,
        "return recorded.sha256 == part.sha256 and of ==", "return of ==",
        ("tests/unit/pipeline/test_stream_forged.py",),
    ),
    Mutant(
        "whole-part-first-byte", "of a small forged part the first byte is compared with nothing",
        "dlpipe/pipeline/stages/fetch.py", "facts = facts if self._part.offset > overlap else None", "facts = facts",
        ("tests/unit/pipeline/test_stream_forged.py",),
    ),
    Mutant(
        "forged-fence-believed", "a fence that the ledger never gave keeps a job from its part for ever", _PART_FILE,
        "side.job_id == self._job_id and side.fence > self._fence and not is_newest():",
        "side.job_id == self._job_id and side.fence > self._fence:",
        ("tests/unit/pipeline/test_stream_forged.py",),
    ),
    Mutant(
        "every-fence-newest", "an overtaken holder takes the part back", "dlpipe/pipeline/stages/stage.py",
        "return row is not None and row.fence == job.fence", "return True",
        ("tests/unit/pipeline/test_stream_forged.py",),
    ),
    Mutant(
        "part-of-any-kind", "a pipe or a device in a part's place is taken for it", _PART_FILE,
        "if not stat.S_ISREG(found.st_mode) or (fd :=", "if (fd :=",
        ("tests/unit/pipeline/test_stream_forged.py",),
    ),
    Mutant(
        "sidecar-any-number", "a sidecar's numbers may be negative", "dlpipe/store/sidecar.py",
        "0 <= value <= most", "value <= most", ("tests/unit/store/test_sidecar.py",),
    ),
    Mutant(
        "sidecar-any-depth", "a sidecar of deep nesting is an error of ours", "dlpipe/store/sidecar.py",
        ", AttributeError, RecursionError)", ", AttributeError)", ("tests/unit/store/test_sidecar.py",),
    ),
    Mutant(
        "one-folder-hides-others", "a link in the place of a tenant's folder ends the walk over all tenants",
        "dlpipe/store/leftovers.py", "except OSError as error:\n            if tenant",
        "except IsADirectoryError as error:\n            if tenant", ("tests/unit/pipeline/test_reconcile_staging.py",),
    ),
    Mutant(
        "one-part-hides-others", "a part that may not be removed ends the walk", "dlpipe/pipeline/parts.py",
        "            with this.passing_over(one.path):\n", "            if True:\n",
        ("tests/unit/pipeline/test_reconcile_staging.py",),
    ),
    Mutant(
        "foreign-home-taken", "what another user has prepared is taken for the data directory",
        "dlpipe/embedded/files.py",
        "    if found.st_uid not in owners:\n        raise _foreign(", "    if False:\n        raise _foreign(",
        ("tests/unit/embedded/test_embedded_files.py",),
    ),
    Mutant(
        "address-unread", "an address that no library can use is found out by the first one that tries",
        "dlpipe/settings.py", "if (why := objection(url)) is not None:", "if (why := None) is not None:",
        ("tests/unit/test_settings.py",),
    ),
    Mutant(
        "disk-error-unheard", "what the disk says of bytes written out early is lost", "dlpipe/store/preallocate.py",
        "raise OSError(number, os.strerror(number))\n    return number ==", "pass\n    return number ==",
        ("tests/unit/store/test_early.py",),
    ),
    Mutant(
        "open-to-change", "a published file may be written to", _LOCAL,
        "            os.fchmod(fd, 0o444)  # before the name: nobody may find it, or leave it, open to change\n", "",
        ("tests/contract/test_blob_store_crash.py",),
    ),
    Mutant(
        "damaged-file-deleted", "wrong bytes under a name are deleted instead of moved away", _LOCAL,
        'os.rename(place.name, f"{place.name}.damaged-{uuid.uuid4().hex[:8]}", src_dir_fd=where, dst_dir_fd=where)',
        "os.unlink(place.name, dir_fd=where)", ("tests/contract/test_blob_store.py",),
    ),
    Mutant(
        "dedupe-without-verification", "another copy's bytes are shared without being looked at",
        "dlpipe/pipeline/stages/dedupe.py",
        "if not store.owns(first.pointer) or not store.vouched(first.pointer, indexed.sha256, placed.size):",
        "if False:",
        ("tests/unit/pipeline/test_place_and_registry.py",),
    ),
    # ── parts ──
    Mutant(
        "part-truncated", "a part is cut instead of unlinked, under a writer that may wake up", _PART,
        "            self._replace()\n            self._stand_at",
        "            os.ftruncate(self._fd, 0)\n            self._stand_at",
        ("tests/contract/test_staging.py", "tests/contract/test_staging_progress.py"),
    ),
    Mutant(
        "unlink-outside-the-lock", "an overtaken holder removes its successor's part", _PART,
        "            if self._is_at_name(self._fd):\n                self._unlink()\n            else:\n"
        "                self._unlink_left_sidecar()",
        "            self._unlink()",
        ("tests/contract/test_staging.py", "tests/contract/test_overtaken.py"),
    ),
    Mutant(
        "later-holder-robbed", "an earlier holder takes the part from a later one", _PART_FILE,
        "        if side.fence == self._fence or (side.fence > self._fence and not is_newest()):\n",
        "        if False:\n",
        ("tests/contract/test_staging.py",),
    ),
    Mutant(
        "size-instead-of-hash", "held bytes count without being hashed again", _PART,
        "                if self._digest.hexdigest() != mark.sha256:\n                    break\n", "",
        ("tests/contract/test_staging_progress.py", "tests/contract/test_staging.py"),
    ),
    Mutant(
        "sidecar-of-another-file", "a sidecar vouches for a file that it was not written for", _PART_FILE,
        "if side is None or side.inode != found.st_ino:", "if side is None:",
        ("tests/contract/test_staging.py", "tests/contract/test_staging_progress.py"),
    ),
    # ── the network ──
    Mutant(
        "if-range-dropped", "a range is asked for without saying of which version", "dlpipe/sources/http.py",
        '                headers["If-Range"] = if_range\n', "                pass\n",
        ("tests/integration/test_http_source.py",),
    ),
    Mutant(
        "weak-validator-joins", "parts are joined under a validator that proves nothing", "dlpipe/core/resume.py",
        "return facts.etag if is_strong(facts.etag) else None", "return facts.etag",
        ("tests/unit/core/test_resume.py",),
    ),
    # ── dispatch ──
    Mutant(
        "dispatch-forgets-refused-messages", "jobs that the broker refused count as sent",
        "dlpipe/pipeline/dispatch.py",
        "settle(deps.database, lambda unit: unit.backlog.unpublish([hint.job_id for hint in hints]))\n", "pass\n",
        ("tests/unit/pipeline/test_dispatch.py",),
    ),
    Mutant(
        "window-ignored", "more is in flight than the window allows", "dlpipe/db/due.py",
        "self._room = 0 if others else min(limit, window - self._hosts.total())", "self._room = limit",
        ("tests/contract/test_dispatch.py",),
    ),
    # ── messages ──
    Mutant(
        "frame-unchecked", "kombu is handed a frame that it cannot read", "dlpipe/inbox/transport.py",
        "        fault = of_envelope(message)\n", "        fault = None\n", (_TRANSPORT,),
    ),
    Mutant(
        "noise-in-a-queue", "a text that is no JSON ends the worker", "dlpipe/inbox/transport.py",
        "            return super()._brpop_read(**options)  # type: ignore[misc]\n        except BAD_DATA:",
        "            return super()._brpop_read(**options)  # type: ignore[misc]\n        except ZeroDivisionError:",
        (_MALFORMED, "-k", "among and not s3"),
    ),
    Mutant(
        "noise-for-all", "a text that is no JSON, published to all workers, ends them", "dlpipe/inbox/transport.py",
        "                loads(found[\"data\"])\n            except BAD_DATA:",
        "                loads(found[\"data\"])\n            except ZeroDivisionError:",
        (_MALFORMED, "-k", "among and not s3"),
    ),
    Mutant(
        "callback-bare", "an event of another worker ends this one", "dlpipe/inbox/transport.py",
        "        _surviving(super()._deliver)(message, queue)", "        super()._deliver(message, queue)",
        (_TRANSPORT,),
    ),
    Mutant(
        "callback-bare-of-rabbitmq", "the same, of RabbitMQ", "dlpipe/inbox/transport.py",
        "callback=_surviving(callback)", "callback=callback", (_TRANSPORT,),
    ),
    Mutant(
        "message-unpacked", "a few bytes become more than the machine has", "dlpipe/inbox/transport.py",
        "        (message.get(\"headers\") or {}).pop(\"compression\", None)\n", "", (_TRANSPORT,),
    ),
    Mutant(
        "message-unpacked-of-rabbitmq", "the same, of RabbitMQ", "dlpipe/inbox/transport.py",
        "        headers.pop(\"compression\", None)  # as above\n", "", (_TRANSPORT,),
    ),
    Mutant(
        "clock-of-anybody", "a command sets a number that can never be sent again", "dlpipe/inbox/clock.py",
        "other if fits else 0", "other", (_TRANSPORT,),
    ),
    Mutant(
        "message-unchecked", "Celery is handed a message of any shape", "dlpipe/inbox/consumer.py",
        "                fault = _fault(message, takes)\n", "                fault = None\n",
        (_MALFORMED, "-k", "among and not s3 or logged"),
    ),
    Mutant(
        "arguments-unchecked", "a task is called with what it does not take", "dlpipe/inbox/consumer.py",
        "    return messages.of_arguments(expected, args, kwargs)\n", "    return None\n",
        ("tests/unit/inbox/test_consumer.py",),
    ),
    Mutant(
        "dropped-but-kept", "a malformed message stays unacknowledged, and counts against the prefetch",
        "dlpipe/inbox/consumer.py",
        "            message.ack_log_error(log, consumer.connection_errors)\n", "            pass\n",
        ("tests/unit/inbox/test_consumer.py",),
    ),
    Mutant(
        "depth-unbounded", "what is nested too far to be pickled goes to a child", "dlpipe/core/messages.py",
        "            return False\n    return True\n", "            return False\n    return False\n",
        ("tests/unit/core/test_messages.py",),
    ),
    Mutant(
        "logged-each", "each malformed message is a line", "dlpipe/inbox/drops.py",
        "now < self._said_at[fault] + LINE_EVERY_S", "False", ("tests/unit/inbox/test_drops.py",),
    ),
    Mutant(
        "old-queue-left", "what the release before sent is never taken", "dlpipe/inbox/queues.py",
        "for name in list(names) for queue in called(self, name)}",
        "for name in list(names) for queue in called(self, name)[:1]}", ("tests/unit/inbox/test_queues.py",),
    ),
    Mutant(
        "old-queue-uncounted", "what the release before sent counts as lost", "dlpipe/celery.py",
        "for queue in defaults.called(queues, short)]", "for queue in defaults.called(queues, short)[:1]]",
        ("tests/unit/inbox/test_queues.py",),
    ),
    # ── tenants ──
    Mutant(
        "another-tenant-told", "what is told of a file goes by what another tenant has",
        "dlpipe/pipeline/stages/dedupe.py",
        "quiet = only_others(self.deps, tenant, first, indexed.sha256, besides=indexed.artifact_uuid)",
        "quiet = False", (_FOREIGN, "-k", "nothing_tells and sqlite"),
    ),
    Mutant(
        "ops-of-anybody", "the ops of a job are told whosever it is", "dlpipe/db/owned.py",
        "            .where(_O.job_id == job_id, owned_by(self._scope))\n", "            .where(_O.job_id == job_id)\n",
        (_FOREIGN, "-k", "sqlite"),
    ),
    Mutant(
        "artifact-of-anybody", "a registered file is read by whoever has its id", "dlpipe/db/owned.py",
        "with_faults().where(_A.artifact_uuid == artifact_uuid, mine)",
        "with_faults().where(_A.artifact_uuid == artifact_uuid)", (_FOREIGN, "-k", "sqlite"),
    ),
    Mutant(
        "wish-for-anybody", "a wish is granted for a job of another tenant", _WISHES,
        "return sa.and_(_T.job_id.in_(ids), owned)", "return _T.job_id.in_(ids)", (_FOREIGN, "-k", "sqlite"),
    ),
    Mutant(
        "record-written-over", "an artifact that is registered again takes what is said of it now",
        "dlpipe/db/registry.py",
        "    return ignoring(dialect, artifacts).values(created_at=now()).returning(_A.artifact_uuid)\n",
        "    insert = upserting(dialect, artifacts).values(created_at=now())\n"
        "    told = {name: insert.excluded[name] for name in (\"sha256\", \"created_at\", \"byte_size\")}\n"
        "    again = insert.on_conflict_do_update(index_elements=[_A.artifact_uuid], set_=told)\n"
        "    return again.returning(_A.artifact_uuid)\n",
        ("tests/contract/test_registry.py", "-k", "sqlite"),
    ),
)  # fmt: skip
