/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.pml - ranks that have a device's one memory by turns, their operations, and a cut at any moment
 *
 * Three ranks share one device, or two of them do (-DDEVICES=2). Sharers use the same addresses of one memory. Bytes
 * have a tag: whose they are, and how often the uninterrupted job has written their unit by then. Whatever finds
 * another's bytes fails the check OWNER, and whatever finds another stage fails STAGE.
 *
 *          it is due             loads             at any moment           drains, captures, saves
 *   OUT ──────────────► COMING ─────────► RESIDENT ─────────────► LEAVING ────────────────────────► OUT
 *                                             ▲    it cannot drain   │
 *                                             └──────────────────────┘
 *
 * Residency is arbitrary: any rank that is due may be the next one, SWITCHES times a slice may end at any moment, and
 * the slice of a rank that has nothing to run may end whenever another is due.
 *
 * An operation works in the memory of a rank that has been resident since it posted. For any other rank it works
 * *beside* the memory: it reads a captured input, and its result waits in a buffer until the rank is resident.
 *
 * Not modelled: who is next of those due (uproxy/slice/turns.h), operations that fail, deaths, memory that is freed,
 * records that are queued on the device behind others, events, small sends that end early, kernels that spin for the
 * host, and R15; rings, gates and the order of starts, which cut.pml has. A host hands in at once what it has between
 * two waits, and a proxy launches and posts at once what it may.
 *
 * Every loop waits for something that has changed, so each run of the model ends if there is no cycle in its states
 * at all: the build with -DNP has no progress label, and finds any.
 *
 * -DPROGRAM=name: what the hosts run, below. -DPARTS: no operation covers a whole unit, so no unit is owed. -DLATER:
 * whoever comes saves the bytes of the rank that left, as long as they lie in the memory.
 * -DNO_rule: the rule is gone; test-model lists them. -DONLY=check: no other check is made, so that the rule's absence
 * is seen to lead to this.
 */

/* ---- programs ---- */

#define DATA     1	/* data-parallel: two all-reduces of one unit in turn */
#define RING     2	/* pairs round the ranks, each of which receives first */
#define POLLS    3	/* a rank polls with kernels until it hears of another's */
#define LATE     4	/* all-reduces over some; a rank begins when it has heard that another's has ended */
#define BUFFERS  5	/* a second buffer is written and sent while an all-reduce has the first */
#define ALONE    6	/* two ranks allocate and reduce a unit that the third does not have */
#define QUERIES  7	/* a rank asks its stream until that has ended, and makes no call that waits */
#define STAGES   8	/* a pipeline: forward, and back */

#ifndef PROGRAM
#define PROGRAM DATA
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef TO
#define TO DEVICES		/* the restored job's devices */
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef SWITCHES
#define SWITCHES 1
#endif
#define N    3
#define S    2			/* streams of a rank */
#define U    2			/* units of a memory */
#define OPS  4
#define NONE 15

/* ---- checks and rules ---- */

#define OWNER     1	/* a rank reads no bytes but its own, and writes only where no other has the memory */
#define STAGE     2	/* bytes are at the stage that the uninterrupted job would have there */
#define STUCK     3	/* the job ends, whether it has run on after the cut or was restored */
#define STUCK_CUT 4	/* the cut ends */
#define MOVED     5	/* nothing moves while the cut reads bytes */

#ifdef ONLY
#define check(what, holds) assert(what != ONLY || (holds))
#else
#define check(what, holds) assert(holds)
#endif

/* 1 if the name is defined as 1, else 0: the kernel's IS_ENABLED(). */
#define PRESENT_1          0,
#define second_of(_, x, ...) x
#define is_set__(junk)     second_of(junk 1, 0)
#define is_set_(value)     is_set__(PRESENT_##value)
#define is_set(name)       is_set_(name)
#define rule(name)         (!is_set(NO_##name))

/* ---- state ---- */

#define B(x)      (1 << (x))
#define has(m, x) (((m) >> (x)) & 1)
#define ALL       (B(N) - 1)

/* A unit and a stage. */
#define pack(u, s)  ((u) * 16 + (s))
#define unit_of(a)  ((a) / 16)
#define stage_of(a) ((a) % 16)

/* Bytes, of a rank or of an all-reduce, whose result is the same for all its members. 0: zeros. */
#define bytes_of(r, s) ((1 + (r)) * 16 + (s))
#define result(x, s)   ((1 + N + (x)) * 16 + (s))
#define is_of(t, r)    ((t) == 0 || (t) / 16 == 1 + (r) || ((t) / 16 > N && has(members[(t) / 16 - 1 - N], r)))
#define UNKNOWN        255

mtype = { OUT, COMING, RESIDENT, LEAVING, KERNEL, PEEK, CALL };

/* By operation, constant: members; who sends, of a pair, else NONE; what is read, and what the result is. */
hidden byte members[OPS], source[OPS], from[OPS], to[OPS];

/* A record: a kernel that reads a unit at a stage, and writes the next one or (PEEK) nothing; an operation's call. */
chan queue[N * S] = [6] of { mtype, byte };
mtype flies[N * S];		/* the kernel that the device has */
byte flies_at[N * S];

/*
 * By operation, masks of ranks: who has posted it; beside whose memory it works; the same when all had posted it;
 * whose result waits in a buffer; for whom it is over.
 */
byte posted[OPS], beside[OPS], seen[OPS], arrived[OPS], over[OPS];

/* By device: bytes, and what its table says of them. */
byte mem[2 * U], table[2 * U];
byte backing[N * U];		/* by rank that is out: its saved bytes; 0: it has had none */
byte live[N], left[N];		/* masks of units: allocated; the rank has let them go, and they are not saved */
mtype state[N];
byte devices = DEVICES;
byte switches = SWITCHES;

/* Masks of ranks: whose host waits in a call; polls with kernels; has something new to look for; ends. */
byte open, polls, news, ended;
byte told;			/* messages between hosts */
byte cuts = CUTS;		/* that may still come */
bool gates, reading;		/* closed; the cut reads bytes */

/* Scratch, which no step leaves anything in. */
hidden byte i, o, q, u, a;
hidden mtype k;

#define device(r)        (devices == 1 -> 0 : (r) / 2)
#define at(r, u)         (device(r) * U + (u))
#define shares(r, x)     ((x) != (r) && device(x) == device(r))
#define other(r, holds)  ((shares(r, 0) && holds(0)) || (shares(r, 1) && holds(1)) || (shares(r, 2) && holds(2)))
#define any(holds, r)    (holds(r, 0) || holds(r, 1) || holds(r, 2) || holds(r, 3))
#define either(holds, r) (holds((r) * S) || holds((r) * S + 1))

#define is_pair(x)       (source[x] != NONE)
#define reads(r, x)      (!is_pair(x) || source[x] == (r))
#define writes(r, x)     (!is_pair(x) || source[x] != (r))
#define is_there(x)      (posted[x] == members[x])
#define is_posted(r, x)  (has(posted[x], r) && !has(over[x], r))
#define is_first(q, x)   queue[q]?[CALL, eval(x)]
#define has_come(q, x)   (is_first(q, x) && !flies[q])
#define comes_to(r, x)   (has_come((r) * S, x) || has_come((r) * S + 1, x))
#define is_empty(q)      (len(queue[q]) == 0 && !flies[q])
#define is_flying(q)     (flies[q] != 0)

/* ---- memory ---- */

#define moves() check(MOVED, !reading)
/* The same, and a host that polls may see it. */
#define changes(r) moves(); news = news | (polls & ~B(r))

inline look(r, what)
{
	check(OWNER, is_of(mem[at(r, unit_of(what))], r));
	check(STAGE, stage_of(mem[at(r, unit_of(what))]) == stage_of(what))
}

#define has_memory(r) (state[r] != OUT)

inline write(r, where, what)
{
	check(OWNER, !other(r, has_memory));
	mem[at(r, where)] = what
}

/* Owed are bytes that an operation will overwrite, whose input it has elsewhere. */
#define is_elsewhere(r, x) (has(beside[x], r) || (!rule(OWED_CAPTURED) && has(posted[x], r)))
#define is_owing(r, x)  (is_elsewhere(r, x) && writes(r, x) && !(rule(OWED_ENDS) && has(over[x], r)))
#define owes_0(r, x)    (is_owing(r, x) && unit_of(to[x]) == 0)
#define owes_1(r, x)    (is_owing(r, x) && unit_of(to[x]) == 1)
#define owed(r, u)      (!is_set(PARTS) && ((u) == 0 && any(owes_0, r) || (u) == 1 && any(owes_1, r)))

/* ---- a rank's streams ---- */

#define may_touch(r)      (state[r] == RESIDENT || !rule(PARK))
#define is_kernel(q)      (queue[q]?[KERNEL, _] || queue[q]?[PEEK, _])
#define is_unposted(q, x) (is_first(q, x) && !has(posted[x], (q) / S))
#define may_post(q, x)    (is_unposted(q, x) && (state[(q) / S] == RESIDENT || !reads((q) / S, x)))

/* Launches the kernel, and posts the call, that are first in their streams and may be. */
inline settle()
{
	for (q : 0 .. N * S - 1) {
		if
		:: is_kernel(q) && !flies[q] && may_touch(q / S) -> queue[q]?k, a; flies[q] = k; flies_at[q] = a
		:: else
		fi;
		if
		:: any(may_post, q) ->
			queue[q]?<_, a>;
			posted[a] = posted[a] | B(q / S);
			beside[a] = beside[a] | ((state[q / S] != RESIDENT) << (q / S));
			if :: is_there(a) -> seen[a] = beside[a] :: else fi
		:: else
		fi
	}
}

inline land(r, q)
{
	a = flies_at[q];
	look(r, a);
	if :: flies[q] == KERNEL -> write(r, unit_of(a), bytes_of(r, stage_of(a) + 1)) :: else fi;
	flies[q] = 0;
	flies_at[q] = 0
}

/* The call is done, and what is behind it may run. */
inline retire(r, x)
{
	if
	:: is_first((r) * S, x) -> queue[(r) * S]?_, _
	:: is_first((r) * S + 1, x) -> queue[(r) * S + 1]?_, _
	:: else
	fi
}

/* ---- operations ---- */

/* When all have posted it, each device learns where every member's bytes are, and goes by that. */
#define is_ready(r, x)  (!has(members[x], r) || \
	((has(seen[x], r) || comes_to(r, x)) && (state[r] == RESIDENT || rule(START_OUT))))
#define is_to_run(x)    (is_there(x) && !(arrived[x] | over[x]))
#define may_run(x)      (is_to_run(x) && is_ready(0, x) && is_ready(1, x) && is_ready(2, x))

inline end_for(r, x)
{
	over[x] = over[x] | B(r);
	retire(r, x)
}

inline write_result(r, x)
{
	if
	:: is_pair(x) -> write(r, unit_of(to[x]), bytes_of(r, stage_of(to[x])))
	:: else -> write(r, unit_of(to[x]), result(x, stage_of(to[x])))
	fi;
	arrived[x] = arrived[x] & ~B(r);
	end_for(r, x)
}

inline run_op(x)
{
	for (i : 0 .. N - 1) {
		if :: has(members[x] & ~seen[x], i) && reads(i, x) -> look(i, from[x]) :: else fi
	}
	for (i : 0 .. N - 1) {
		if
		:: has(members[x], i) && !writes(i, x) -> end_for(i, x)
		:: has(members[x] & ~seen[x], i) && writes(i, x) -> write_result(i, x)
		:: has(members[x] & seen[x], i) && writes(i, x) ->
			arrived[x] = arrived[x] | B(i);
			if :: !rule(WRITTEN_FIRST) -> retire(i, x) :: else fi
		:: else
		fi
	}
}

#define has_result(r, x) has(arrived[x], r)
#define may_take(r)     (state[r] == RESIDENT || (!rule(LOADED_FIRST) && state[r] == COMING) || \
	(!rule(RESULT_WAITS) && state[r] != COMING))

/* ---- slices ---- */

#define needs(q, x)     (is_unposted(q, x) && reads((q) / S, x))
#define wants(q)        (is_kernel(q) || any(needs, q))
#define is_waiting(r)   (has(open, r) || len(queue[(r) * S]) > 1 || len(queue[(r) * S + 1]) > 1)
#define is_due(r)       (state[r] == OUT && (either(wants, r) || \
	(any(has_result, r) && (rule(RESULT_DUE) || is_waiting(r)))))

#define is_direct(r, x) (is_posted(r, x) && is_there(x) && !has(beside[x], r))
/* Without PATIENCE, a rank that polls counts as busy, since it will have something to run. */
#define is_busy(r)      (either(is_flying, r) || any(is_direct, r) || any(has_result, r) || \
	(!rule(PATIENCE) && has(polls, r)))
#define yields(r)       (rule(WHO_IS_DUE) && !is_busy(r) && other(r, is_due))
#define may_switch      (!gates || !rule(CUT_STILL))
#define may_end(r)      (state[r] == RESIDENT && may_switch && (switches > 0 || yields(r)))
#define may_stay(r)     (state[r] == LEAVING && either(is_flying, r) && switches > 0)
#define may_come(r)     (is_due(r) && may_switch && !other(r, has_memory))

/* An input is captured if not all have posted the operation, and when the stream has come to it. */
#define is_held(r, x)   (is_posted(r, x) && !has(beside[x], r) && (!is_there(x) || !rule(UNSTARTED)))
#define may_capture(r, x) (is_held(r, x) && (comes_to(r, x) || !rule(CAPTURE_BEHIND)))
#define may_go(r)       (state[r] == LEAVING && !(rule(DRAIN) && either(is_flying, r)) && \
	!(rule(DRAIN_OPS) && any(is_direct, r)) && !(rule(CAPTURE) && any(is_held, r)))

inline capture(r, x)
{
	if :: reads(r, x) -> look(r, from[x]) :: else fi;
	beside[x] = beside[x] | B(r)
}

#define leaves(r, u)    (has(live[r], u) && !(rule(OWED_LEFT) && owed(r, u)))
#define is_left(r, u)   (rule(LIVE_THEN) -> has(left[r], u) : left[r] && has(live[r], u))

inline save(r)
{
	for (u : 0 .. U - 1) {
		if
		:: is_left(r, u) && rule(SAVED_FIRST) ->
			check(OWNER, is_of(mem[at(r, u)], r));
			table[at(r, u)] = mem[at(r, u)];
			backing[(r) * U + u] = mem[at(r, u)]
		:: else
		fi
	}
	left[r] = 0
}

#define saved(r, u)     backing[(r) * U + (u)]
/* A rank may write its units in its slice. The table knows them again when they are digested; owed ones are not. */
#define is_unknown(r, u) (rule(TABLE_ENDS) && has(live[r], u) && (rule(OWED_UNKNOWN) || !owed(r, u)))
#define differs(r, u)   (table[at(r, u)] != saved(r, u) && (saved(r, u) -> rule(LOAD) : rule(ZEROS)))

inline load(r)
{
	for (i : 0 .. N - 1) {
		if :: shares(r, i) && left[i] -> save(i) :: else fi
	}
	for (u : 0 .. U - 1) {
		if
		:: has(live[r] & ~left[r], u) && !owed(r, u) ->
			if :: differs(r, u) -> mem[at(r, u)] = saved(r, u); table[at(r, u)] = saved(r, u) :: else fi;
			saved(r, u) = 0
		:: else
		fi;
		if :: is_unknown(r, u) -> table[at(r, u)] = UNKNOWN :: else fi
	}
	for (o : 0 .. OPS - 1) {
		if :: !rule(BESIDE_STAYS) && !is_there(o) -> beside[o] = beside[o] & ~B(r) :: else fi
	}
	left[r] = 0
}

proctype Rank(byte r)
{
end:	do
	:: atomic {
		if
		:: d_step { flies[r * S] != 0 -> changes(r); land(r, r * S) }
		:: d_step { flies[r * S + 1] != 0 -> changes(r); land(r, r * S + 1) }
		:: any(has_result, r) && may_take(r) ->
			if
			:: has_result(r, 0) -> o = 0
			:: has_result(r, 1) -> o = 1
			:: has_result(r, 2) -> o = 2
			:: has_result(r, 3) -> o = 3
			fi;
			d_step { changes(r); write_result(r, o) }
		:: d_step { may_end(r) ->
			moves();
			switches = (yields(r) -> switches : switches - 1);
			state[r] = LEAVING }
		:: d_step { may_stay(r) -> moves(); switches--; state[r] = RESIDENT }
		:: state[r] == LEAVING && any(may_capture, r) && rule(CAPTURE) ->
			if
			:: may_capture(r, 0) -> o = 0
			:: may_capture(r, 1) -> o = 1
			:: may_capture(r, 2) -> o = 2
			:: may_capture(r, 3) -> o = 3
			fi;
			d_step { moves(); capture(r, o) }
		:: d_step { may_go(r) ->
			moves();
			left[r] = leaves(r, 0) | (leaves(r, 1) << 1);
			if :: !is_set(LATER) -> save(r) :: else fi;
			state[r] = OUT }
		:: d_step { may_come(r) -> moves(); state[r] = COMING }
		:: d_step { state[r] == COMING -> moves(); load(r); state[r] = RESIDENT }
		fi;
		d_step { settle(); skip } }
	od
}

proctype Transport()
{
end:	do
	:: atomic {
		if
		:: may_run(0) -> o = 0
		:: may_run(1) -> o = 1
		:: may_run(2) -> o = 2
		:: may_run(3) -> o = 3
		fi;
		d_step { changes(NONE); run_op(o); settle(); skip } }
	od
}

/* ---- the cut ---- */

#define is_steady(r)    (state[r] == OUT || state[r] == RESIDENT || !rule(SWITCH_ENDS))
#define is_still(r)     (is_steady(r) && !either(is_flying, r) && !(state[r] == RESIDENT && any(has_result, r)))
#define all_still       (is_still(0) && is_still(1) && is_still(2) && \
	!is_to_run(0) && !is_to_run(1) && !is_to_run(2) && !is_to_run(3))
/* Where does the rank's version of a unit lie? */
#define lies_there(r, u) ((state[r] == RESIDENT && has(live[r], u)) || (rule(CUT_LOOKS) && has(left[r], u)))

/* The image takes these bytes, or those of the backing. */
inline read_bytes(r)
{
	for (u : 0 .. U - 1) {
		check(OWNER, !lies_there(r, u) || owed(r, u) || is_of(mem[at(r, u)], r))
	}
}

inline restore()
{
	for (i : 0 .. N - 1) {
		for (u : 0 .. U - 1) {
			if :: lies_there(i, u) -> saved(i, u) = (owed(i, u) -> 0 : mem[at(i, u)]) :: else fi
		}
		state[i] = OUT;
		left[i] = 0
	}
	for (i : 0 .. 2 * U - 1) {
		mem[i] = 0;
		table[i] = 0
	}
	for (o : 0 .. OPS - 1) {
		if :: !rule(RESULTS_SAVED) -> arrived[o] = 0 :: else fi;
		if :: !rule(CAPTURES_SAVED) -> beside[o] = beside[o] & (arrived[o] | over[o]) :: else fi;
		/* What is not captured is posted again. */
		if :: rule(POST_AGAIN) -> posted[o] = posted[o] & (beside[o] | over[o]) :: else fi
	}
	devices = TO
}

proctype Cut()
{
	byte r;

serve:	if
	:: cuts > 0 -> cuts--
	:: timeout -> check(STUCK, ended == ALL); goto end
	fi;
	gates = true;
	if
	:: atomic { all_still -> reading = true }
	:: timeout -> check(STUCK_CUT, false); goto end
	fi;
	do
	:: d_step { r < N -> read_bytes(r); r++ }
	:: r == N -> break
	od;
	atomic { r = 0; reading = false };
	if
	:: skip			/* the job runs on */
	:: d_step { true -> restore(); settle(); skip }
	fi;
	gates = false;
	goto serve;
end:	skip
}

/* ---- the hosts ---- */

/* Hands in records between which the program waits for nothing. */
#define submit(...)         atomic { !gates -> __VA_ARGS__; d_step { settle(); skip } }
#define kernel(s, u, stage) queue[r * S + s]!KERNEL, pack(u, stage)
#define peek(s, u, stage)   queue[r * S + s]!PEEK, pack(u, stage)
#define call(s, x)          queue[r * S + s]!CALL, x

/* Waits in a call for a stream. */
inline sync(s)
{
	open = open | B(r);
	atomic { is_empty(r * S + s) -> open = open & ~B(r) }
}

#define is_in_memory(u) (state[r] == RESIDENT || state[r] == LEAVING || has(left[r], u))

inline allocate(u)
{
	d_step { !gates ->
		live[r] = live[r] | B(u);
		if :: is_in_memory(u) && rule(ZERO_NEW) -> mem[at(r, u)] = 0 :: else fi;
		if :: is_in_memory(u) && rule(NEW_UNKNOWN) -> table[at(r, u)] = UNKNOWN :: else fi
	}
}

inline tell(what)
{
	atomic { told = told | B(what); news = news | polls }
}

inline hear(what)
{
	has(told, what)
}

#define last_of(u) (is_in_memory(u) -> mem[at(r, u)] : saved(r, u))

/* This job ends with the bytes of the uninterrupted one. */
inline compare(u, stage)
{
	check(OWNER, !has(live[r], u) || is_of(last_of(u), r));
	check(STAGE, !has(live[r], u) || stage_of(last_of(u)) == stage)
}

inline finish(stage_0, stage_1)
{
	open = open | B(r);
	atomic { is_empty(r * S) && is_empty(r * S + 1) ->
		compare(0, stage_0);
		compare(1, stage_1);
		open = open & ~B(r);
		ended = ended | B(r) }
}

proctype Host(byte r)
{
#if PROGRAM == DATA
	submit(kernel(0, 0, 0); call(0, 0); kernel(0, 0, 2); call(0, 1));
	finish(4, 0)
#elif PROGRAM == RING
	submit(call(1, (r + 2) % 3); kernel(1, 1, 1); kernel(0, 0, 0); call(0, r));
	finish(1, 2)
#elif PROGRAM == POLLS
	if
	:: r == 0 ->
		polls = B(r);
		do
		:: submit(peek(0, 0, 0));
			sync(0);
			if
			:: has(told, 0) -> break
			:: else -> atomic { has(news, r) -> news = 0 }
			fi
		od;
		atomic { polls = 0; news = 0 }
	:: r == 1
	:: r == 2 -> submit(kernel(0, 1, 0)); sync(0); tell(0)
	fi;
	submit(kernel(0, 0, 0); call(0, 0));
	finish(2, r / 2)
#elif PROGRAM == LATE
	if
	:: r == 0 -> hear(0); submit(kernel(0, 1, 0); call(0, 1); kernel(0, 1, 2)); finish(0, 3)
	:: r == 1 -> submit(kernel(0, 0, 0); call(0, 0); kernel(1, 1, 0); call(1, 1)); finish(2, 2)
	:: r == 2 ->
		submit(kernel(0, 0, 0); call(0, 0));
		sync(0);
		tell(0);
		submit(kernel(0, 0, 2));
		finish(3, 0)
	fi
#elif PROGRAM == BUFFERS
	submit(kernel(0, 0, 0); call(0, 0); kernel(0, 0, 2));
	if
	:: r == 0
	:: r == 1 -> submit(call(1, 1))
	:: r == 2 -> submit(kernel(1, 1, 0); call(1, 1))
	fi;
	finish(3, r > 0)
#elif PROGRAM == ALONE
	submit(kernel(0, 0, 0); call(0, 0));
	if
	:: r == 0
	:: r > 0 -> allocate(1); submit(kernel(0, 1, 0); call(0, 1))
	fi;
	finish(2, 2)
#elif PROGRAM == QUERIES
	submit(kernel(0, 0, 0); call(0, 0));
	if
	:: r == 0 -> is_empty(r * S)
	:: r == 1 -> sync(0)
	:: r == 2
	fi;
	submit(kernel(0, 0, 2));
	finish(3, 0)
#elif PROGRAM == STAGES
	if
	:: r == 0 -> submit(kernel(0, 0, 0); call(0, 0); call(1, 3); kernel(1, 1, 1)); finish(1, 2)
	:: r == 1 ->
		submit(call(0, 0); kernel(0, 0, 1); call(0, 1));
		submit(call(1, 2); kernel(1, 1, 1); call(1, 3));
		finish(2, 2)
	:: r == 2 -> submit(call(0, 1); kernel(0, 0, 1); call(0, 2)); finish(2, 0)
	fi
#endif
}

inline collective(x, who, what)
{
	members[x] = who;
	source[x] = NONE;
	from[x] = what;
	to[x] = (what) + 1
}

inline pair(x, sender, receiver, what, where)
{
	members[x] = B(sender) | B(receiver);
	source[x] = sender;
	from[x] = what;
	to[x] = where
}

inline programs()
{
#if PROGRAM == DATA
	collective(0, ALL, pack(0, 1));
	collective(1, ALL, pack(0, 3))
#elif PROGRAM == RING
	pair(0, 0, 1, pack(0, 1), pack(1, 1));
	pair(1, 1, 2, pack(0, 1), pack(1, 1));
	pair(2, 2, 0, pack(0, 1), pack(1, 1))
#elif PROGRAM == LATE
	collective(0, B(1) | B(2), pack(0, 1));
	collective(1, B(0) | B(1), pack(1, 1))
#elif PROGRAM == ALONE
	collective(0, ALL, pack(0, 1));
	collective(1, B(1) | B(2), pack(1, 1))
#elif PROGRAM == BUFFERS
	collective(0, ALL, pack(0, 1));
	pair(1, 2, 1, pack(1, 1), pack(1, 1))
#elif PROGRAM == STAGES
	pair(0, 0, 1, pack(0, 1), pack(0, 1));
	pair(1, 1, 2, pack(0, 2), pack(0, 1));
	pair(2, 2, 1, pack(0, 2), pack(1, 1));
	pair(3, 1, 0, pack(1, 2), pack(1, 1))
#else
	collective(0, ALL, pack(0, 1))
#endif
}

init {
	d_step {
		for (i : 0 .. OPS - 1) {
			members[i] = NONE	/* nobody posts it */
		}
		programs();
		for (i : 0 .. N - 1) {
			state[i] = OUT;
			live[i] = (PROGRAM == ALONE -> B(0) : B(0) | B(1))
		}
	}
	atomic {
		for (i : 0 .. N - 1) {
			run Host(i);
			run Rank(i)
		}
		run Transport();
		run Cut()
	}
}
