"""What can happen to a task: each scenario a fault, the phase at which it strikes, and how long it lasts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.chaos.faults.ack_cut import AckCut
from repot.chaos.faults.bandwidth import Bandwidth
from repot.chaos.faults.blackhole import Blackhole
from repot.chaos.faults.broker_killed import BrokerKilled
from repot.chaos.faults.broker_paused import BrokerPaused
from repot.chaos.faults.child_killed import ChildKilled
from repot.chaos.faults.consumer_timeout import ConsumerTimeout
from repot.chaos.faults.cut import Cut
from repot.chaos.faults.data_limit import DataLimit
from repot.chaos.faults.delivery_limit import DeliveryLimit
from repot.chaos.faults.demoted import Demoted
from repot.chaos.faults.eviction import Eviction
from repot.chaos.faults.failover import Failover
from repot.chaos.faults.half_open import HalfOpen
from repot.chaos.faults.latency import Latency
from repot.chaos.faults.link import BOTH, FROM
from repot.chaos.faults.memory_alarm import MemoryAlarm
from repot.chaos.faults.queue_deleted import QueueDeleted
from repot.chaos.faults.reset import Reset
from repot.chaos.faults.shutdown import Shutdown
from repot.chaos.faults.slicer import Slicer
from repot.chaos.faults.slow_close import SlowClose
from repot.chaos.faults.spare_lost import SpareLost
from repot.chaos.faults.worker_frozen import WorkerFrozen
from repot.chaos.faults.worker_killed import WorkerKilled
from repot.worker.gates import Phase

if TYPE_CHECKING:
    from repot.chaos.faults import Fault


#: What all of them are called, and a small part.
ALL, SMOKE = "all", "smoke"
#: Between the name of a scenario and the phase that its fault is moved to.
AT = "@"


class Needs(StrEnum):
    """What broker a scenario needs."""

    #: Any: nothing happens to it.
    ANY = "any"
    #: One of its own, as something happens to it.
    OWN = "own"
    #: Several servers that replicate each other: three of RabbitMQ, or a primary and a replica of Redis.
    REPLICATED = "replicated"

    @property
    def rarity(self) -> int:
        """The higher, the fewer such brokers there are at a time."""
        return list(Needs).index(self)


class Sent(StrEnum):
    """When a subject is sent, and how."""

    #: Before the fault; it is held at the scenario's phase.
    BEFORE = "before"
    #: While the fault lasts, by a producer whom it does not concern.
    INTO_THE_FAULT = "into the fault"
    #: While the fault lasts, by a producer whose link is the one that is struck; the worker's is not.
    OVER_THE_STRUCK_LINK = "over the struck link"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way for a task to come to harm.

    Attributes:
        lesson: what it teaches, in a sentence or two.
        phase: where its subject is held until the fault has struck; None to send it into the fault.
        lasts_s: how long the fault lasts; 0 for no longer than it takes, and None until nothing is left of the task.
        unseen: with a `lasts_s` of 0, the worker's main process stands still meanwhile: it meets the consequences
            of the fault, never the fault itself.
        works_s: how long the subject works after it was held.
        retries: how often the subject asks for another run before it works.
        deadly: the subject kills its own process each time instead of having its effect.
        reruns: with the guard, it is run again where nobody knows whether it was done, instead of being set aside.
        crowded: where the broker is struck, more tasks wait behind the subject than a worker reserves.
        countdown_s: how long the subject is to wait before it is run.
        sent: when the subject is sent, and over which link.
        stills_worker: the fault itself stops or ends the struck worker, so its silence meanwhile says nothing.
        movable: the fault may as well strike at another phase.
    """

    name: str
    title: str
    lesson: str
    fault: Fault | None
    phase: Phase | None
    lasts_s: float | None = None
    unseen: bool = False
    works_s: float = 0
    retries: int = 0
    deadly: bool = False
    reruns: bool = False
    countdown_s: float = 0
    crowded: bool = True
    needs: Needs = Needs.ANY
    sent: Sent = Sent.BEFORE
    stills_worker: bool = False
    movable: bool = True
    smoke: bool = False

    @property
    def has_other_phases(self) -> bool:
        """Whether it can be moved to another phase; not where its subject is held at none."""
        return self.movable and None not in (self.fault, self.phase) and self.sent is Sent.BEFORE

    def moved_to(self, phase: Phase) -> Scenario:
        """The same fault at another phase, called `NAME@PHASE`."""
        assert self.fault is not None, "nothing strikes"
        return replace(
            self,
            name=f"{self.name}{AT}{phase}",
            title=f"As {self.name}, at the phase {phase}: {self.fault.what}",
            lesson="The table of expectations does not have it: it is judged by whether anything bad came of it.",
            phase=phase,
            retries=self.retries or int(phase is Phase.RETRY_PUBLISH),
            smoke=False,
        )


#: Longer than a worker may stand still without a word before it is said to hang.
_LONG_S = 13
#: Longer than the visibility timeout. Workers try to connect again 0, 2, 6 and 12 s after the loss: an outage that
#: ended at one of these would leave to chance whether they succeed.
_LINK_AWAY_S = 10

_LINKS = (
    Scenario(
        "dropped-ack",
        "The task is done; its ACK never arrives, nor anything else",
        "Both brokers deliver again: Redis after the visibility timeout, RabbitMQ after 2 to 3 heartbeats. "
        "Deduplication of successes keeps the effect single, and so does the guard.",
        Blackhole(),
        Phase.BEFORE_ACK,
        lasts_s=_LONG_S,
        smoke=True,
    ),
    Scenario(
        "ack-cut",
        "The bytes of this one ACK are lost, and nothing else",
        "Until the connection ends nobody misses an ACK on RabbitMQ; then the task is delivered again. A late ACK on "
        "Redis waits for its answer: for ever, unless there is a socket timeout.",
        AckCut(),
        # an early ACK comes next
        Phase.RECEIVED,
        lasts_s=_LONG_S,
        works_s=0.5,
        movable=False,
    ),
    Scenario(
        "blackhole",
        "Bytes vanish both ways while the task runs, and nobody is told",
        "Without timeouts of its own a Redis worker hangs in its next command, and says nothing.",
        Blackhole(BOTH),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=1,
    ),
    Scenario(
        "blackhole-inbound",
        "Bytes from the broker vanish while the task runs",
        "On RabbitMQ the ACK arrives. On Redis the worker waits for the answer to what it asked before, and the ACK "
        "comes too late.",
        Blackhole(FROM),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=1,
    ),
    Scenario(
        "half-open",
        "A firewall forgets the worker's connections while the task runs, and tells nobody; new ones work",
        "A worker must find out by itself: by heartbeats on RabbitMQ, by timeouts on Redis, where Celery sets none.",
        HalfOpen(),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=1,
    ),
    Scenario(
        "half-closed",
        "The worker's connections break while the task runs, and the broker does not hear of it",
        "The worker connects anew beside its own ghost. Celery's exclusive control queue belongs to the ghost, and on "
        "RabbitMQ the worker exits.",
        HalfOpen(worker_is_told=True),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=1,
    ),
    Scenario(
        "connection-reset",
        "The link is reset while the task runs; reconnecting works at once",
        "Both brokers start a second run beside the first within moments. Deduplication of successes cannot help: "
        "nothing has succeeded yet. The guard does.",
        Cut(),
        Phase.RUNNING,
        lasts_s=0,
        unseen=True,
        works_s=4,
        smoke=True,
    ),
    Scenario(
        "tcp-reset",
        "The link is reset (RST) whenever bytes pass, while the task runs",
        "A reset that lasts, as by a firewall that has forgotten the connection.",
        Reset(),
        Phase.RUNNING,
        lasts_s=_LINK_AWAY_S,
        works_s=1,
    ),
    Scenario(
        "link-down",
        "The link goes away while the task runs, and stays away for longer than it",
        "RabbitMQ delivers again at once, beside the first run. On Redis the worker cannot put its task back, so "
        "the visibility timeout decides.",
        Cut(),
        Phase.RUNNING,
        lasts_s=_LINK_AWAY_S,
        works_s=4,
    ),
    Scenario(
        "lost-in-flight",
        "The link goes silent with the message on its way to the worker, and closes",
        "On Redis the message is in nobody's hands between BRPOP and the note in `unacked`: lost, with late acks, too.",
        Blackhole(FROM),
        Phase.BEFORE_RECEIVE,
        lasts_s=1,
        sent=Sent.INTO_THE_FAULT,
        smoke=True,
    ),
    Scenario(
        "reset-received",
        "The link is reset when the worker has the message, but no process of its pool",
        "Both brokers deliver again; what the worker reserved is forgotten or runs, too.",
        Cut(),
        Phase.RECEIVED,
        lasts_s=0,
    ),
    Scenario(
        "reset-after-ack",
        "The link is reset when all is done and acknowledged",
        "Nothing comes of it.",
        Cut(),
        Phase.AFTER_ACK,
        lasts_s=0,
    ),
    Scenario(
        "retry-link-down",
        "The link is down when the task asks to be retried",
        "Celery drops a task whose retry it cannot send, late acks or not; the guarded task keeps its message.",
        Cut(),
        Phase.RETRY_PUBLISH,
        lasts_s=4,
        retries=1,
    ),
    Scenario(
        "results-down",
        "The result backend cannot be reached when the result is to be stored",
        "The effect has happened; whether the task succeeded is a matter of a backend beside the broker.",
        Cut(where="results"),
        Phase.RESULT_STORE,
        lasts_s=5,
    ),
    Scenario(
        "latency",
        "Every byte takes its time, with jitter",
        "Slow is not broken.",
        Latency(latency_ms=(50, 150), jitter_ms=(0, 50)),
        Phase.STARTED,
        works_s=1,
    ),
    Scenario("bandwidth", "The link is narrow", "Slow is not broken.", Bandwidth(), Phase.STARTED, works_s=1),
    Scenario(
        "slow-close", "The link closes late", "Nothing comes of it by itself.", SlowClose(), Phase.STARTED, works_s=1
    ),
    Scenario("slicer", "Bytes arrive in crumbs", "Frames are put together again.", Slicer(), Phase.STARTED, works_s=1),
    Scenario(
        "data-limit",
        "The link closes after a number of bytes, again and again",
        "A worker connects in a loop, and gets its work done when the link holds. On Redis an ACK that fails is only "
        "logged, and counts as in hand for ever: without repot a worker that reserves one message asks for no other.",
        DataLimit(),
        Phase.RUNNING,
        lasts_s=6,
        works_s=1,
    ),
    Scenario(
        "publish-blackhole",
        "The producer's link goes silent as it sends the task",
        "Without confirms RabbitMQ's client takes a message for sent that was only written; Redis' client waits for "
        "an answer, for ever without a socket timeout.",
        Blackhole(),
        None,
        lasts_s=2,
        sent=Sent.OVER_THE_STRUCK_LINK,
    ),
)

_WORKERS = (
    Scenario(
        "killed-before-receive",
        "The worker is killed with the message on its way to it",
        "On Redis it is lost: popped, and in no hash yet.",
        WorkerKilled(),
        Phase.BEFORE_RECEIVE,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-received",
        "The worker is killed with the message reserved",
        "Nothing was acknowledged: it comes again.",
        WorkerKilled(),
        Phase.RECEIVED,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-running",
        "The worker is killed while the task runs",
        "With early acks the task is gone. With late acks it comes again.",
        WorkerKilled(),
        Phase.RUNNING,
        lasts_s=1,
        works_s=1,
        stills_worker=True,
        smoke=True,
    ),
    Scenario(
        "killed-after-effect",
        "The worker is killed when the effect has happened and nothing is stored",
        "Nobody can know: late acks repeat the effect, the guard sets the task aside or runs it again, as you say.",
        WorkerKilled(),
        Phase.AFTER_EFFECT,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-before-ack",
        "The worker is killed when all is done but the ACK",
        "Deduplication of successes and the guard both know better than to run it again.",
        WorkerKilled(),
        Phase.BEFORE_ACK,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "killed-after-ack",
        "The worker is killed when all is done and acknowledged",
        "Nothing comes of it.",
        WorkerKilled(),
        Phase.AFTER_ACK,
        lasts_s=1,
        stills_worker=True,
    ),
    Scenario(
        "child-killed",
        "A process of the pool is killed while the task runs, as the kernel does when memory runs out",
        "Celery acknowledges such a task as failed, with late acks, too: it is gone, unless lost workers are retried.",
        ChildKilled(),
        Phase.RUNNING,
        lasts_s=0,
        works_s=1,
        smoke=True,
    ),
    Scenario(
        "child-killed-after-effect",
        "A process of the pool is killed when the effect has happened",
        "Whoever retries lost workers repeats the effect; the guard does not.",
        ChildKilled(),
        Phase.AFTER_EFFECT,
        lasts_s=0,
    ),
    Scenario(
        "poison",
        "The task kills whatever process runs it",
        "Without a limit it is run for ever; with one it must end up where a person finds it.",
        None,
        None,
        deadly=True,
    ),
    Scenario(
        "delivery-limit",
        "The task kills whatever process runs it, and its queue gives it up after three returns",
        "Rejecting what a killed process had in hand repeats it without a pause, until the queue's limit: without a "
        "dead-letter queue it is dropped then, and nobody is told.",
        DeliveryLimit(),
        None,
        lasts_s=12,
        deadly=True,
        needs=Needs.OWN,
    ),
    Scenario(
        "worker-frozen",
        "The whole worker stands still for longer than any timeout, and goes on",
        "It comes back as if nothing had happened, beside the run that took its place: leases and fences are for that.",
        WorkerFrozen(),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=1,
        stills_worker=True,
    ),
    Scenario(
        "frozen-rerun",
        "The whole worker stands still, its task is run again elsewhere, and it goes on",
        "With RERUN the effect may happen twice once the lease has run out, but only one run wins: the fence refuses "
        "the other.",
        WorkerFrozen(),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=4,
        stills_worker=True,
        reruns=True,
    ),
    Scenario(
        "warm-shutdown",
        "The worker is asked to end (SIGTERM) while the task runs",
        "It ends when the task has.",
        Shutdown(warm=True),
        Phase.RUNNING,
        lasts_s=2,
        works_s=1,
        stills_worker=True,
    ),
    Scenario(
        "soft-shutdown",
        "The worker is asked to end soon (SIGQUIT) while the task runs for longer than the soft timeout",
        "What runs is put back, with late acks; with early acks it is gone.",
        Shutdown(warm=False),
        Phase.RUNNING,
        lasts_s=2,
        works_s=6,
        stills_worker=True,
    ),
)

_BROKERS = (
    Scenario(
        "broker-killed",
        "The broker is killed while the task runs, and comes back with its data",
        "What was accepted is still there; what ran may run again.",
        BrokerKilled(keeps_data=True),
        Phase.RUNNING,
        lasts_s=3,
        works_s=1,
        needs=Needs.OWN,
    ),
    Scenario(
        "broker-wiped",
        "The broker is killed while the task runs, and comes back empty",
        "What waited is gone.",
        BrokerKilled(keeps_data=False),
        Phase.RUNNING,
        lasts_s=3,
        works_s=1,
        needs=Needs.OWN,
    ),
    Scenario(
        "broker-paused",
        "The broker stands still while the task ends, and goes on",
        "Connections stay, answers do not come: a worker without timeouts hangs as long.",
        BrokerPaused(),
        Phase.RUNNING,
        lasts_s=_LONG_S,
        works_s=8,
        needs=Needs.OWN,
    ),
    Scenario(
        "memory-alarm",
        "The broker has no memory left while the task runs",
        "RabbitMQ lets workers work and makes producers wait. Redis refuses every write: an ACK's transaction up to 7, "
        "later the note of what BRPOP has taken, which is lost.",
        MemoryAlarm(),
        Phase.RUNNING,
        lasts_s=8,
        works_s=1,
        crowded=False,
        needs=Needs.OWN,
    ),
    Scenario(
        "retry-alarm",
        "The broker has no memory left when the task asks to be retried",
        "A retry is a message that must be sent.",
        MemoryAlarm(),
        Phase.RETRY_PUBLISH,
        lasts_s=8,
        retries=1,
        crowded=False,
        needs=Needs.OWN,
    ),
    Scenario(
        "eviction",
        "Redis throws keys away for want of memory",
        "A queue is a key: all that waits in it is gone at once, and producers are told that all is well.",
        Eviction(),
        Phase.RUNNING,
        lasts_s=2,
        works_s=1,
        needs=Needs.OWN,
    ),
    Scenario(
        "queue-deleted",
        "The queue is deleted while the task runs and another waits",
        "What waited is gone, on any broker.",
        QueueDeleted(),
        Phase.RUNNING,
        lasts_s=2,
        works_s=1,
        needs=Needs.OWN,
    ),
    Scenario(
        "consumer-timeout",
        "RabbitMQ takes back what is not acknowledged in time",
        "RabbitMQ's own visibility timeout, 30 minutes by default: the worker exits, or runs the task beside itself.",
        ConsumerTimeout(),
        Phase.RUNNING,
        lasts_s=15,
        works_s=12,
        # it is there from the beginning, and strikes whatever runs for too long
        movable=False,
        needs=Needs.OWN,
    ),
    Scenario(
        "leader-killed",
        "The server in charge of the queue is killed, and another takes over",
        "A quorum queue goes on elsewhere with all it accepted; a classic queue is away with its server.",
        Failover(lagging=False),
        Phase.RUNNING,
        lasts_s=8,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
    Scenario(
        "failover-lagging",
        "The primary is killed before its replica has heard of the task",
        "Redis replicates after it has answered: what it accepted last is lost.",
        Failover(lagging=True),
        Phase.RUNNING,
        lasts_s=4,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
    Scenario(
        "primary-demoted",
        "The primary is demoted to a replica, alive and read-only",
        "celery/celery#7946: a worker that takes READONLY for an error of a command ends, or fails for as long as its "
        "connection lives.",
        Demoted(),
        Phase.RUNNING,
        lasts_s=4,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
    Scenario(
        "spare-killed",
        "A server that is not in charge of the queue is killed",
        "Nothing comes of it.",
        SpareLost(),
        Phase.RUNNING,
        lasts_s=4,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
)

_NONE = (
    Scenario("no-fault", "Nothing happens", "The measure of all others.", None, None, smoke=True),
    Scenario(
        "visibility-timeout",
        "No fault at all: the task takes longer than the visibility timeout",
        "Redis hands the running task out again. RabbitMQ's own limit, consumer_timeout, is 30 minutes unless it is "
        "raised.",
        None,
        Phase.RUNNING,
        # longer than the timeout, and over before a third copy is due
        works_s=12,
    ),
    Scenario(
        "eta-beyond-timeout",
        "No fault at all: the task is to run later than the visibility timeout",
        "Redis hands a waiting task out again and again, and every copy runs.",
        None,
        None,
        countdown_s=20,
        # copies on two workers come due at the same instant: neither is over when the other begins
        works_s=1,
    ),
)

SCENARIOS = {scenario.name: scenario for scenario in (*_NONE, *_LINKS, *_WORKERS, *_BROKERS)}
