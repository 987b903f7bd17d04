/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cut.pml - ranks whose collective operations start when all have posted them, and a cut at any moment
 *
 * Each rank is a host (its program), a proxy and a device, which run at their own pace:
 *
 *   Host ── ring ──► Proxy ── parked, by stream ──► posted ── log ──► started ── stream ──► Device
 *     ▲ gate           └── all else: to the stream ────────────────────────────────────────┘
 *    Cut: closes gates, asks each rank until all are quiet twice, saves, thaws or restores
 *
 * The model knows no bytes. Of each operation a rank's memory has three bits, in the order of the stages that
 * the uninterrupted job has: its input is made, its result is there, the result is used. Whatever finds
 * memory at another stage fails the check STAGE.
 *
 * Every loop waits for something that has changed, so each run of the model ends if there is no cycle in its
 * states at all: the build with -DNP has no progress label, and finds any.
 *
 * -DPROGRAM=name: what the hosts run, below. -DNO_rule: the rule is gone; docs/collectives.md lists them.
 * -DONLY=check: no other check is made, so that the rule's absence is seen to lead to this.
 */

/* ---- programs ---- */

#define DATA      1	/* data-parallel: 4 ranks, one communicator, one rank waits for another's message */
#define GRID      2	/* tensor × data: 2 × 2 ranks, each in two communicators */
#define PIPELINE  3	/* 3 stages: small sends forward, large ones back */
#define EXCHANGE  4	/* small sends both ways, receives behind them */
#define RING      5	/* large sends round 3 ranks, in groups */
#define FAN       6	/* a group of sends that its receivers take one after the other */
#define EVENTS    7	/* a result is used in another stream, behind an event */
#define LEGACY    8	/* the same behind the legacy stream's order */
#define CROSS     9	/* two communicators, posted in opposite orders, in two streams */
#define BEHIND   10	/* one communicator in two streams, one of them held up */
#define CREATE   11	/* creation that does not block; the unique id comes by a message */
#define ABORTS   12	/* a rank aborts, before or after it posts; the others go on without it */
#define ENDS     13	/* communicators are ended behind calls that are still parked */
#define QUERIES  14	/* a rank asks its stream, and goes on whatever that says */
#define SPINS    15	/* a kernel waits for the host, which stands at its gate */
#define EARLY    16	/* a receiver's buffer is in use until it posts */

#ifndef PROGRAM
#define PROGRAM DATA
#endif
#if PROGRAM == DATA || PROGRAM == GRID
#define N 4
#elif PROGRAM == PIPELINE || PROGRAM == RING || PROGRAM == FAN || PROGRAM == CREATE || PROGRAM == ABORTS
#define N 3
#else
#define N 2
#endif
#ifndef CUTS
#define CUTS 1
#endif
#define S    2			/* streams of a rank */
#define OPS  4
#define NONE 15

/*
 * With more than 2 ranks, what lags behind is less: devices do at once what needs no other device, one record
 * is in a ring at a time, all gates close at once, and proxies join again at once.
 */
#if N == 2
#define LAG
#endif
#if N == 2 || PROGRAM == CREATE || PROGRAM == ABORTS
#define LATE_JOINS
#endif
#if N == 2
#define RING_SIZE 2
#define has_room(r) (len(ring[r]) < RING_SIZE)
#elif N == 3
#define RING_SIZE 1
#define has_room(r) (len(ring[0]) + len(ring[1]) + len(ring[2]) == 0)
#else
#define RING_SIZE 1
#define has_room(r) (len(ring[0]) + len(ring[1]) + len(ring[2]) + len(ring[3]) == 0)
#endif

/* ---- checks ---- */

#define STAGE     1	/* memory is at the stage that the uninterrupted job would have there */
#define MATCH     2	/* calls that meet in an operation are those of one operation */
#define FAILS     3	/* no operation fails but for a rank that aborts */
#define STUCK     4	/* the job ends, without any cut before */
#define STUCK_CUT 5	/* the cut ends */
#define STUCK_AFTER 6	/* the job ends after a cut, whether it runs on or was restored */
#define IN_FLIGHT 7	/* at the cut nothing is started that has not ended, nor could be started */
#define MOVED     8	/* nothing changes in what has been saved */

#ifdef ONLY
#define check(what, holds) assert(what != ONLY || (holds))
#else
#define check(what, holds) assert(holds)
#endif

/* ---- state ---- */

#define B(x)      (1 << (x))
#define has(m, x) (((m) >> (x)) & 1)
#define ALL       (B(N) - 1)

mtype = { MAKE, USE, COLL, RECORD, WAIT, SYNC, SPIN, QUERY, JOIN, END, ABORT };

/* A record: kind, stream, and operations or events (a mask) or communicator. */
chan ring[N] = [RING_SIZE] of { byte, byte, byte };
chan parked[N * S] = [5] of { byte, byte, byte };
chan stream[N * S] = [5] of { byte, byte };
chan issue[N] = [OPS] of { byte };	/* operations started on a device, in the order of the starts */

/* By operation, constant: members; communicator; the rank that sends, of a pair, else NONE. */
byte members[OPS], comm_of[OPS], source[OPS];
byte small;			/* sends that may complete early */

/* By operation: who has posted it, started it, and heard of its end; its place in the log. */
byte posted[OPS], started[OPS], over[OPS], order[OPS];
byte orders;
byte failed;
byte early, filled;		/* small sends that go to a buffer; whose buffer has the data */

/* By rank, masks of operations: the stages of its memory, and calls that its proxy has decoded. */
byte made[N], moved[N], used[N], decoded[N];
byte running[N];		/* the operation that has the device's multiprocessors */

/*
 * By parked queue: the calls of its first record, if that is posted and has not begun; whether that
 * has its place in the stream; whether it is to be posted again after a restore.
 */
byte head[N * S], placed, again;

/* By stream: what it has come to, and stands at. */
byte at[N * S], at_what[N * S];

/* By rank, masks of events: their recording is parked; is in a stream; is done. */
byte event_parked[N], event_placed[N], event_done[N];

/* By communicator, masks of ranks; by rank, masks of communicators. */
byte ranks[4], joined[4], gone[4];
byte joins[N], ending[N];

/* Masks of ranks: whose host waits for an answer; has it; has written its kernel's word; is at its gate; ends. */
byte open, answered, word, at_gate, ended;
byte told;			/* messages between hosts */
byte gates, dirty, saved;	/* masks of ranks: closed; changed since the cut has looked; saved */
byte cuts;			/* that may still come */
bool cut_before, looks;	/* looks: the cut asks whether all are quiet */

/* Scratch, which no step leaves anything in. */
hidden byte i, o, q, k, s, a, g;

#define stands(c) ((joined[c] | gone[c]) == ranks[c])

#if PROGRAM == LEGACY		/* both streams are in one order */
#define stream_of(r, s) ((r) * S)
#else
#define stream_of(r, s) ((r) * S + (s))
#endif
#if defined(NO_OTHERS_RUN_ON)
#define queue_of(r, s) ((r) * S)
#elif defined(NO_LEGACY_ORDER)
#define queue_of(r, s) ((r) * S + (s))
#else
#define queue_of(r, s) stream_of(r, s)
#endif

/* Does the condition hold for all operations of a mask, for any? */
#define every(m, holds, r) \
	((!has(m, 0) || holds(r, 0)) && (!has(m, 1) || holds(r, 1)) && (!has(m, 2) || holds(r, 2)) && \
	 (!has(m, 3) || holds(r, 3)))
#define any(holds, r) (holds(r, 0) || holds(r, 1) || holds(r, 2) || holds(r, 3))

#define is_over(r, o)  has(over[o], r)
#define is_early(r, o) (has(early, o) && source[o] == r)
#define is_begun(r, o) (has(started[o], r) || has(over[o], r) || is_early(r, o))
#define is_there(r, o) (posted[o] == members[o])

/* ---- the board: uproxy/coll/step.c ---- */

/* An operation ends for all: here for those who have not started it, else when their devices say so. */
inline fail(x)
{
	if
	:: !has(failed, x) && over[x] != members[x] ->
		check(FAILS, PROGRAM == ABORTS);
		failed = failed | B(x);
		over[x] = over[x] | (posted[x] & ~started[x])
	:: else
	fi
}

/* A rank aborts its communicator, or ends it. */
inline leave(r, c)
{
	gone[c] = gone[c] | B(r);
	i = 0;
	do
	:: i < OPS ->
		if
		:: comm_of[i] == c && has(members[i], r) && !has(over[i], r) ->
#ifdef NO_ABORT_ENDS_ALL
			over[i] = over[i] | (posted[i] & ~started[i] & B(r))
#else
			fail(i)
#endif
		:: else
		fi;
		i++
	:: else -> break
	od
}

inline append(x)
{
	if
	:: !order[x] -> orders++; order[x] = orders
	:: else
	fi
}

/* The board counts calls: this one is taken for the first of its kind that the rank has not posted. */
inline match(r, x)
{
	i = 0;
	do
	:: i < x ->
		check(MATCH, comm_of[i] != comm_of[x] || source[i] != source[x] ||
			members[i] != members[x] || !has(members[i], r) || has(posted[i] | over[i], r));
		i++
	:: else -> break
	od
}

inline post_call(r, x)
{
	match(r, x);
	posted[x] = posted[x] | B(r);
	if
	:: has(failed, x) -> over[x] = over[x] | B(r)
	:: else ->
		if
		:: gone[comm_of[x]] & members[x] & ~posted[x] -> fail(x)
		:: else ->
#ifdef NO_ALL_POSTED
			append(x);
#endif
#ifdef NO_OWN_BUFFERS
			if
			:: source[x] == r -> moved[1] = moved[1] | B(x)
			:: else
			fi;
#endif
			if
			:: posted[x] == members[x] -> append(x)
			:: else ->
#ifndef NO_SMALL_SENDS
				if
				:: has(small, x) && source[x] == r -> early = early | B(x)
				:: else
				fi
#else
				skip
#endif
			fi
		fi
	fi
}

/* ---- a proxy: uproxy/streams/park.c, uproxy/comm/post.c ---- */

/* A call is posted behind all earlier ones of its communicator that are decoded; x is in a head. */
#define in_head(r, x, y, p) (has(head[p], x) && has(head[p], y))
#define is_before(r, x, y) (y >= x || comm_of[y] != comm_of[x] || !has(decoded[r], y) || \
	has(posted[y] | over[y], r) || in_head(r, x, y, (r) * S) || in_head(r, x, y, (r) * S + 1))
#define in_order(r, x) (is_before(r, x, 0) && is_before(r, x, 1) && is_before(r, x, 2))
#ifdef NO_COMM_ORDER
#define in_turn(r, x) true
#else
#define in_turn(r, x) in_order(r, x)
#endif
#define may_post(r, x) (stands(comm_of[x]) && in_turn(r, x))
#define is_aborted(r, x) has(gone[comm_of[x]], r)

/* The posted record takes its place in its stream. */
inline place(r, p)
{
	if
	:: !has(placed, p) ->
		stream[p]!COLL, head[p];
		placed = placed | B(p)
	:: else
	fi
}

/* Is the first record still held? */
inline begin(r, p)
{
	if
	:: head[p] && every(head[p], is_begun, r) ->
		head[p] = 0;
		placed = placed & ~B(p)
	:: else
	fi
}

/* Posts the record that is the first of its queue. */
inline post(r, p)
{
	o = 0;
	do
	:: o < OPS ->
		if
		:: has(head[p], o) ->
			post_call(r, o);
			if
			:: is_early(r, o) -> place(r, p)
			:: else
			fi
		:: else
		fi;
		o++
	:: else -> break
	od;
	begin(r, p)
}

#ifdef NO_EVENT_PARKED
#define waits_for_event(r) false
#else
#define waits_for_event(r) (k == WAIT && (event_parked[r] & a))
#endif

/* Runs the first record of queue p, or breaks if it waits for something. */
inline run_first(r, p)
{
	parked[p]?<k, s, a>;
	if
	:: waits_for_event(r) -> break
	:: k == COLL && every(a, is_aborted, r) -> parked[p]?_, _, _
	:: k == COLL && !every(a, is_aborted, r) ->
		head[p] = a;
		if
		:: every(a, may_post, r) ->
			changes(r);
			parked[p]?_, _, _;
			post(r, p)
		:: else -> head[p] = 0; break
		fi
	:: else ->
		changes(r);
		parked[p]?_, _, _;
		stream[stream_of(r, s)]!k, a;
		if
		:: k == RECORD ->
			event_parked[r] = event_parked[r] & ~a;
			event_placed[r] = event_placed[r] | a
		:: else
		fi
	fi
}

/*
 * park_run(), of all ranks, since a communicator may just have come to stand. Twice: the second queue of
 * a rank may let the first one go on, or the other way round, and no third time can be needed.
 */
inline run_parked()
{
	q = 0;
	do
	:: q < 3 * N * S ->
		do
		:: len(parked[q % (N * S)]) > 0 && !head[q % (N * S)] ->
			run_first((q % (N * S)) / S, q % (N * S))
		:: else -> break
		od;
		q++
	:: else -> break
	od
}

inline answer(r)
{
	answered = answered | B(r);
	open = open & ~B(r)
}

/* Something of rank r changes. */
inline changes(r)
{
	check(MOVED, !has(saved, r));
	dirty = dirty | (looks << r)
}

/* A group is not parted by the way in which its calls come: sends first, as programs without groups do. */
inline part(r, sends)
{
	o = 0;
	do
	:: o < OPS ->
		if
		:: has(a, o) && (source[o] == r) == sends -> parked[queue_of(r, s)]!COLL, s, B(o)
		:: else
		fi;
		o++
	:: else -> break
	od
}

inline decode(r)
{
	ring[r]?k, s, a;
	if
	:: k == JOIN -> joins[r] = joins[r] | B(a); joined[a] = joined[a] | B(r)
	:: k == END ->
		ending[r] = ending[r] | B(a);
#ifdef NO_ENDS_WAIT
		leave(r, a)
#else
		skip
#endif
	:: k == ABORT -> ending[r] = ending[r] | B(a); leave(r, a)
#ifndef NO_NOT_READY
	:: k == QUERY -> answer(r)
#endif
#ifdef NO_STREAM_PARKED
	:: k == USE -> stream[stream_of(r, s)]!k, a
#endif
	:: k == COLL ->
		decoded[r] = decoded[r] | a;
#ifdef NO_GROUP_AS_ONE
		part(r, true);
		part(r, false)
#else
		parked[queue_of(r, s)]!k, s, a
#endif
	:: else ->
		parked[queue_of(r, s)]!k, s, a;
		if
		:: k == RECORD -> event_parked[r] = event_parked[r] | a
		:: else
		fi
	fi
}

/* What is next in the log for this device. */
#ifdef NO_START_SINGLY
#define group_at(r, x) \
	((!has(head[(r) * S], x) || every(head[(r) * S], is_there, r)) && \
	 (!has(head[(r) * S + 1], x) || every(head[(r) * S + 1], is_there, r)))
#define group_is_there(r, x) (group_at(0, x) && group_at(1, x) && group_at(N - 1, x))
#else
#define group_is_there(r, x) true
#endif
#define in_log(r, x) (order[x] && has(posted[x], r) && !has(started[x], r) && !has(failed, x) && \
	group_is_there(r, x))
#ifdef NO_LOG_ORDER
#define is_next(r, x) in_log(r, x)
#else
#define behind(r, x, y) (in_log(r, y) && order[y] < order[x])
#define is_next(r, x) (in_log(r, x) && !behind(r, x, 0) && !behind(r, x, 1) && !behind(r, x, 2) && \
	!behind(r, x, 3))
#endif

inline start_in(r, x, p)
{
	if
	:: has(head[p], x) -> place(r, p); begin(r, p)
	:: else
	fi
}

inline start(r, x)
{
	changes(r);
	started[x] = started[x] | B(r);
	issue[r]!x;
	start_in(r, x, r * S);
	start_in(r, x, r * S + 1)
}

/* A posted record has ended unstarted, since its operations have failed. */
#define has_ended(r, p) (head[p] && !has(again, p) && every(head[p], is_begun, r))

/* A call to end a communicator is answered when nothing of it is under way or parked. */
#define under_way(r, x) (has(ending[r], comm_of[x]) && has(decoded[r], x) && !has(over[x], r) && \
	(has(posted[x], r) || !has(gone[comm_of[x]], r)))
#define may_end(r) (ending[r] && !any(under_way, r))

inline end_communicators(r)
{
	g = 0;
	do
	:: g < 4 ->
		if
		:: has(ending[r], g) && !has(gone[g], r) -> leave(r, g)
		:: else
		fi;
		g++
	:: else -> break
	od;
	ending[r] = 0;
	answer(r)
}

/* A new proxy joins its communicators anew, and posts the first records of its queues again. */
#define lacks(r, c) (has(joins[r], c) && !has(joined[c] | gone[c], r))
#define may_join(r) (lacks(r, 0) || lacks(r, 1) || lacks(r, 2) || lacks(r, 3))
#define all_stand(r, x) stands(comm_of[x])
#ifdef NO_POST_AGAIN_IN_ORDER
#define may_post_again(r, p) (has(again, p) && every(head[p], all_stand, r))
#else
#define may_post_again(r, p) (has(again, p) && every(head[p], all_stand, r) && every(head[p], in_order, r))
#endif

inline join_again(r)
{
	g = 0;
	do
	:: g < 4 ->
		if
		:: lacks(r, g) -> joined[g] = joined[g] | B(r)
		:: else
		fi;
		g++
	:: else -> break
	od
}

#ifdef NO_OPEN_CALLS		/* the handler waits for what the call waits for */
#define may_serve(r) (!has(open, r) || len(ring[r]) > 0)
#else
#define may_serve(r) true
#endif
#ifdef NO_DECODE
#define may_decode(r) (len(ring[r]) > 0 && !has(gates, r))
#else
#define may_decode(r) len(ring[r]) > 0
#endif

/* ---- a device and its transport ---- */

/* A stream comes to its next record. */
inline advance(r, p)
{
	stream[p]?k, a;
	if
	:: k == MAKE ->
		check(STAGE, !(made[r] & a) && !(moved[r] & a));
		made[r] = made[r] | a
	:: k == USE ->
		check(STAGE, (moved[r] & a) == a && !(used[r] & a));
		used[r] = used[r] | a
	:: k == RECORD -> event_done[r] = event_done[r] | a
	:: k == SYNC || k == QUERY -> answer(r)
	:: else ->
		at[p] = k;
		at_what[p] = a;
		o = 0;
		do
		:: k == COLL && o < OPS ->
			if
			:: has(a & early & ~filled, o) && source[o] == r ->
				check(STAGE, has(made[r], o));
				filled = filled | B(o);
				over[o] = over[o] | B(r)
			:: else
			fi;
			o++
		:: else -> break
		od
	fi
}

/* An event that has not been recorded holds nobody up. */
#define goes_on(r, p) ((at[p] == COLL && every(at_what[p], is_over, r)) || \
	(at[p] == SPIN && has(word, r)) || \
	(at[p] == WAIT && !(at_what[p] & event_placed[r] & ~event_done[r])))

/* Kernels of collectives hold the device while they wait for the others. */
#define has_come(r, p, x) (at[p] == COLL && has(at_what[p], x))
#define may_enter(r, x) (issue[r]?[x] && running[r] == NONE && (has(failed, x) || \
	has_come(r, (r) * S, x) || has_come(r, (r) * S + 1, x) || (is_early(r, x) && has(filled, x))))
#define runs(m, x) (!has(members[x], m) || running[m] == x)
#if N == 2
#define all_run(x) (runs(0, x) && runs(1, x))
#elif N == 3
#define all_run(x) (runs(0, x) && runs(1, x) && runs(2, x))
#else
#define all_run(x) (runs(0, x) && runs(1, x) && runs(2, x) && runs(3, x))
#endif
#define is_first(r, x) (has(members[x], r) && !(members[x] & (B(r) - 1)))
#define may_move(r) (running[r] != NONE && is_first(r, running[r]) && !has(failed, running[r]) && \
	all_run(running[r]))

inline move(x)
{
	i = 0;
	do
	:: i < N ->
		if
		:: has(members[x], i) ->
			changes(i);
			if
			:: source[x] == NONE || source[x] == i -> check(STAGE, has(made[i], x))
			:: else
			fi;
			if
			:: source[x] != i ->
#ifndef NO_OWN_BUFFERS
				check(STAGE, !has(moved[i], x));
#endif
				moved[i] = moved[i] | B(x)
			:: else
			fi;
			running[i] = NONE;
			issue[i]?_
		:: else
		fi;
		i++
	:: else -> break
	od;
	over[x] = members[x];
	order[x] = 0;
	if
	:: !(order[0] | order[1] | order[2] | order[3]) -> orders = 0
	:: else
	fi
}

/* What devices do without others. */
inline run_devices()
{
	q = 0;
	do
	:: q < N * S ->
		do
		:: !at[q] && len(stream[q]) > 0 -> changes(q / S); advance(q / S, q)
		:: goes_on(q / S, q) -> changes(q / S); at[q] = 0; at_what[q] = 0
		:: else -> break
		od;
		q++
	:: else -> break
	od;
	q = 0;
	do
	:: q < N ->
		if
		:: any(may_enter, q) -> changes(q); issue[q]?<o>; running[q] = o
		:: else
		fi;
		q++
	:: else -> break
	od
}

#ifdef LAG
#define settle() run_parked()
#else
#define settle() run_parked(); run_devices()
#endif

proctype Proxy(byte r)
{
end:	do
	:: atomic {
		if
		:: d_step { may_decode(r) ->
			changes(r);
			decode(r) }
		:: may_serve(r) && any(is_next, r) ->
			if
			:: is_next(r, 0) -> o = 0
			:: is_next(r, 1) -> o = 1
			:: is_next(r, 2) -> o = 2
			:: is_next(r, 3) -> o = 3
			fi;
			d_step { start(r, o) }
		:: d_step { may_serve(r) && (has_ended(r, r * S) || has_ended(r, r * S + 1)) ->
			changes(r);
			begin(r, r * S);
			begin(r, r * S + 1) }
		:: d_step { may_serve(r) && may_end(r) ->
			changes(r);
			end_communicators(r) }
		:: d_step { may_join(r) ->
			changes(r);
			join_again(r);
			skip }
		:: d_step { may_post_again(r, r * S) ->
			changes(r);
			again = again & ~B(r * S);
			post(r, r * S) }
		:: d_step { may_post_again(r, r * S + 1) ->
			changes(r);
			again = again & ~B(r * S + 1);
			post(r, r * S + 1) }
		fi;
		d_step { settle(); skip } }
	od
}

proctype Device(byte r)
{
end:	do
#ifdef LAG
	:: d_step { !at[r * S] && len(stream[r * S]) > 0 -> changes(r); advance(r, r * S); skip }
	:: d_step { !at[r * S + 1] && len(stream[r * S + 1]) > 0 -> changes(r); advance(r, r * S + 1); skip }
	:: d_step { goes_on(r, r * S) -> changes(r); at[r * S] = 0; at_what[r * S] = 0 }
	:: d_step { goes_on(r, r * S + 1) -> changes(r); at[r * S + 1] = 0; at_what[r * S + 1] = 0 }
	:: d_step { any(may_enter, r) -> changes(r); issue[r]?<o>; running[r] = o }
#endif
	:: atomic {
		if
		:: d_step { may_move(r) -> o = running[r]; move(o) }
		:: d_step { running[r] != NONE && has(failed, running[r]) ->
			changes(r);	/* cancelled */
			o = running[r];
			over[o] = over[o] | B(r);
			running[r] = NONE;
			issue[r]?_ }
		fi
#ifndef LAG
		;
		d_step { run_devices(); skip }
#endif
		}
	od
}

/* ---- the cut: uproxy/rebuild/freeze.c ---- */

/* A group's record of which some calls are not started is taken back from its stream. */
#ifdef NO_TAKE_BACK
#define stands_still(p) (!at[p])
#else
#define stands_still(p) (!at[p] || (at[p] == COLL && has(placed, p)))
#endif
#ifdef NO_RUN_TO_END
#define is_idle(r) true
#else
#define is_idle(r) (!any(is_next, r) && len(issue[r]) == 0 && len(stream[(r) * S]) == 0 && \
	len(stream[(r) * S + 1]) == 0 && stands_still((r) * S) && stands_still((r) * S + 1))
#endif
#ifdef NO_DECODE
#define is_decoded(r) true
#else
#define is_decoded(r) len(ring[r]) == 0
#endif
#ifdef NO_OPEN_SAVED
#define calls_done(r) (!has(open, r))
#else
#define calls_done(r) true
#endif
#ifdef NO_NOT_ASKED
#define agrees(r) (has(at_gate | ended, r))
#else
#define agrees(r) true
#endif
#define quiet(r) (is_decoded(r) && is_idle(r) && calls_done(r) && agrees(r) && \
	!has_ended(r, (r) * S) && !has_ended(r, (r) * S + 1) && !may_end(r) && !may_join(r) && \
	!may_post_again(r, (r) * S) && !may_post_again(r, (r) * S + 1))

/* Nothing is started that has not ended, or is posted by all and not started. */
#define all_over (over[0] == members[0] && over[1] == members[1] && over[2] == members[2] && \
	over[3] == members[3] || PROGRAM == ABORTS)
#define flies(r, x) ((started[x] & ~over[x]) || \
	(posted[x] == members[x] && over[x] != members[x]))

/* The proxies and devices are gone, and new ones have what was saved. */
inline restore_operations()
{
	orders = 0;
	o = 0;
	do
	:: o < OPS ->
		order[o] = 0;
		if
		:: over[o] != members[o] ->
			posted[o] = (has(filled, o) -> B(source[o]) : 0);	/* its buffer is in the image */
			started[o] = 0;
			failed = failed & ~B(o)
		:: else
		fi;
#ifdef NO_BUFFERS_SAVED
		early = early & ~B(o);
		filled = filled & ~B(o);
		if
		:: over[o] != members[o] -> posted[o] = 0
		:: else
		fi;
#endif
		o++
	:: else -> break
	od
}

inline restore_rank(r)
{
	do :: len(ring[r]) > 0 -> ring[r]?_, _, _ :: else -> break od;
	do :: len(issue[r]) > 0 -> issue[r]?_ :: else -> break od;
	running[r] = NONE;
	q = r * S;
	do
	:: q < r * S + S ->
		do :: len(stream[q]) > 0 -> stream[q]?_, _ :: else -> break od;
		at[q] = 0;
		at_what[q] = 0;
#ifdef NO_PARKED_SAVED
		head[q] = 0;
		do :: len(parked[q]) > 0 -> parked[q]?_, _, _ :: else -> break od;
#endif
		o = 0;
		do
		:: o < OPS ->
			if
			:: has(head[q], o) && has(over[o], r) ->
#ifdef NO_DONE_BITS
				over[o] = 0;	/* a new operation for the board */
				started[o] = 0;
				posted[o] = 0
#else
				head[q] = head[q] & ~B(o)
#endif
			:: else
			fi;
			o++
		:: else -> break
		od;
		if :: head[q] -> again = again | B(q) :: else fi;
		q++
	:: else -> break
	od
}

inline restore()
{
	placed = 0;
	restore_operations();
	g = 0;
	do
	:: g < N -> restore_rank(g); g++
	:: else -> break
	od;
	g = 0;
	do
	:: g < 4 ->
#ifdef NO_JOIN_ANEW
		if
		:: joined[g] != ranks[g] -> i = 0;
			do
			:: i < N -> joins[i] = joins[i] & ~B(g); i++
			:: else -> break
			od
		:: else
		fi;
#endif
#ifdef LATE_JOINS
		joined[g] = 0;
#endif
#ifdef NO_LEFT_SAVED
		i = 0;
		do
		:: i < N ->
			if :: has(gone[g], i) -> joins[i] = joins[i] & ~B(g) :: else fi;
			i++
		:: else -> break
		od;
		gone[g] = 0;
#endif
		g++
	:: else -> break
	od
}

proctype Cut()
{
	byte r;

serve:	if
	:: cuts > 0 -> cuts--
	:: timeout ->
		check(STUCK, cut_before || (ended == ALL && all_over));
		check(STUCK_AFTER, !cut_before || (ended == ALL && all_over));
		goto end
	fi;
#ifdef NO_ALL_GATES
#elif N > 2
	gates = ALL;
#else
	r = 0;
	do
	:: r < N -> atomic { gates = gates | B(r); r++ }
	:: else -> break
	od;
#endif
	cut_before = true;
	looks = true;
look:	r = 0;
	do
	:: r < N ->
		if
		:: atomic { quiet(r) -> dirty = dirty & ~B(r); r++ }
		:: timeout -> goto late
		fi
	:: else -> break
	od;
#ifndef NO_REPEAT
	r = 0;
	do
	:: atomic { r < N && quiet(r) && !has(dirty, r) -> r++ }
	:: r < N && (!quiet(r) || has(dirty, r)) -> goto look
	:: r == N -> break
	od;
#endif
	r = 0;
	do
	:: r < N -> atomic { saved = saved | B(r); r++ }
	:: else -> break
	od;
	atomic {
		check(IN_FLIGHT, !any(flies, 0));
		saved = 0;
		dirty = 0;
		looks = false
	};
	if
	:: skip			/* the job runs on */
	:: d_step { true -> restore(); skip }
	fi;
	gates = 0;
	goto serve;

late:	check(STUCK_CUT, PROGRAM == SPINS);
	dirty = 0;
	looks = false;
#ifndef NO_DEADLINE
	gates = 0;
#endif
	goto serve;
end:	skip
}

/* ---- the hosts ---- */

/* Puts a record into the ring. */
inline put(kind, where, arg)
{
#ifdef NO_NOT_ASKED
	at_gate = at_gate | B(r);
#endif
	atomic { !has(gates, r) && has_room(r) ->
		ring[r]!kind, where, arg;
		at_gate = at_gate & ~B(r)
	}
}

/* The same, and waits for its answer. */
inline call(kind, where, arg)
{
#ifdef NO_NOT_ASKED
	at_gate = at_gate | B(r);
#endif
	atomic { !has(gates, r) && has_room(r) ->
		ring[r]!kind, where, arg;
		open = open | B(r);
		at_gate = at_gate & ~B(r)
	}
	atomic { has(answered, r) -> answered = answered & ~B(r) }
}

inline tell(what)
{
	told = told | B(what)
}

inline hear(what)
{
	has(told, what)
}

/* Waits for both streams; what the uninterrupted job has used in the end, this one has. */
inline finish(what)
{
	call(SYNC, 0, 0);
	atomic { check(STAGE, used[r] == (what)); ended = ended | B(r) }
}

proctype Host(byte r)
{
#if PROGRAM == DATA
	if
	:: r == 0 -> hear(0)	/* evaluates meanwhile */
	:: else
	fi;
	put(COLL, 0, B(0));
	if
	:: r == 3 -> tell(0)
	:: else
	fi;
	put(USE, 0, B(0));
	finish(B(0))
#elif PROGRAM == GRID
	put(COLL, 0, B(r / 2));
	put(COLL, 1, B(2 + r % 2));
	ended = ended | B(r)
#elif PROGRAM == PIPELINE
	if
	:: r > 0 -> put(COLL, 0, B(r - 1))
	:: else
	fi;
	if
	:: r < 2 -> put(COLL, 0, B(r)); put(COLL, 0, B(3 - r))
	:: else
	fi;
	if
	:: r > 0 -> put(COLL, 0, B(4 - r))
	:: else
	fi;
	finish(0)
#elif PROGRAM == EXCHANGE
	put(COLL, 0, B(r));
	if
	:: r == 0 -> call(SYNC, 0, 0); tell(0)
	:: r == 1 -> hear(0)
	fi;
	put(COLL, 0, B(1 - r));
	put(USE, 0, B(1 - r));
	finish(B(1 - r))
#elif PROGRAM == RING
	put(COLL, 0, B(r) | B((r + 2) % 3));
	put(USE, 0, B((r + 2) % 3));
	finish(B((r + 2) % 3))
#elif PROGRAM == FAN
	if
	:: r == 0 -> put(COLL, 0, B(0) | B(2)); finish(0)
	:: r == 1 -> put(COLL, 0, B(0)); put(COLL, 0, B(1)); finish(0)
	:: r == 2 -> put(COLL, 0, B(1)); put(COLL, 0, B(2)); put(USE, 0, B(2)); finish(B(2))
	fi
#elif PROGRAM == EVENTS
	put(COLL, 0, B(0));
	put(RECORD, 0, 1);
	put(WAIT, 1, 1);
	put(USE, 1, B(0));
	call(SYNC, 1, 0);
	finish(B(0))
#elif PROGRAM == LEGACY
	put(COLL, 1, B(0));
	put(USE, 0, B(0));
	finish(B(0))
#elif PROGRAM == CROSS
	put(COLL, r, B(r));
	put(COLL, 1 - r, B(1 - r));
	call(SYNC, 1, 0);
	finish(0)
#elif PROGRAM == BEHIND
	put(COLL, 0, B(1));
	put(COLL, 0, B(0));
	put(COLL, 1, B(2));
	call(SYNC, 1, 0);
	finish(0)
#elif PROGRAM == CREATE
	if
	:: r > 0 -> hear(0)
	:: else
	fi;
	put(JOIN, 0, 0);
	if
	:: r == 0 -> tell(0)
	:: else
	fi;
	stands(0);
	put(COLL, 0, B(0));
	put(USE, 0, B(0));
	finish(B(0))
#elif PROGRAM == ABORTS
	if
	:: r == 0 ->
		if
		:: put(COLL, 0, B(0))
		:: skip
		fi;
		call(ABORT, 0, 0);
		ended = ended | B(r)
	:: else ->
		put(COLL, 0, B(0));
		put(COLL, 0, B(1));
		finish(0)
	fi
#elif PROGRAM == ENDS
	put(COLL, 0, B(0));
	put(USE, 0, B(0));
	call(END, 0, 0);
	finish(B(0))
#elif PROGRAM == QUERIES
	if
	:: r == 1 -> hear(0)
	:: else
	fi;
	put(COLL, 0, B(0));
	if
	:: r == 0 -> call(QUERY, 0, 0); tell(0)
	:: else
	fi;
	put(USE, 0, B(0));
	finish(B(0))
#elif PROGRAM == SPINS
	if
	:: r == 0 ->
		put(SPIN, 0, 0);
		put(MAKE, 0, B(0));
		word = word | B(r)
	:: else
	fi;
	put(COLL, 0, B(0));
	put(USE, 0, B(0));
	finish(B(0))
#elif PROGRAM == EARLY
	if
	:: r == 1 -> put(MAKE, 0, B(0))
	:: else
	fi;
	put(COLL, 0, B(0));
	if
	:: r == 1 -> put(USE, 0, B(0))
	:: else
	fi;
	finish(r)
#endif
}

inline collective(x, c, who)
{
	members[x] = who;
	comm_of[x] = c;
	ranks[c] = who
}

inline pair(x, from, to)
{
	members[x] = B(from) | B(to);
	source[x] = from
}

inline programs()
{
#if PROGRAM == GRID
	collective(0, 0, B(0) | B(1));
	collective(1, 1, B(2) | B(3));
	collective(2, 2, B(0) | B(2));
	collective(3, 3, B(1) | B(3))
#elif PROGRAM == PIPELINE
	ranks[0] = ALL;
	small = B(0) | B(1);
	pair(0, 0, 1);
	pair(1, 1, 2);
	pair(2, 2, 1);
	pair(3, 1, 0)
#elif PROGRAM == EXCHANGE
	ranks[0] = ALL;
	ranks[1] = ALL;
	small = B(0) | B(1);
	pair(0, 0, 1);
	pair(1, 1, 0);
	comm_of[1] = 1
#elif PROGRAM == RING || PROGRAM == FAN
	ranks[0] = ALL;
	pair(0, 0, 1);
	pair(1, 1, 2);
#if PROGRAM == RING
	pair(2, 2, 0)
#else
	pair(2, 0, 2)
#endif
#elif PROGRAM == CROSS
	collective(0, 0, ALL);
	collective(1, 1, ALL)
#elif PROGRAM == BEHIND
	collective(0, 0, ALL);
	collective(1, 1, ALL);
	collective(2, 0, ALL)
#elif PROGRAM == ABORTS
	collective(0, 0, ALL);
	collective(1, 1, B(1) | B(2))
#elif PROGRAM == EARLY
	ranks[0] = ALL;
	pair(0, 0, 1)
#else
	collective(0, 0, ALL)
#endif
}

init {
	if
	:: cuts = 0
	:: cuts = CUTS
	fi;
	d_step {
		i = 0;
		do
		:: i < OPS -> source[i] = NONE; i++
		:: else -> break
		od;
		programs();
		i = 0;
		do
		:: i < N ->
			made[i] = B(OPS) - 1;
			running[i] = NONE;
			g = 0;
			do
			:: g < 4 ->
#if PROGRAM != CREATE
				if
				:: has(ranks[g], i) -> joins[i] = joins[i] | B(g); joined[g] = ranks[g]
				:: else
				fi;
#endif
				g++
			:: else -> break
			od;
			i++
		:: else -> break
		od;
#if PROGRAM == SPINS
		made[0] = 0
#elif PROGRAM == EARLY
		made[1] = 0
#else
		skip
#endif
	}
	atomic {
		i = 0;
		do
		:: i < N -> run Host(i); run Proxy(i); run Device(i); i++
		:: else -> break
		od;
		run Cut()
	}
}
