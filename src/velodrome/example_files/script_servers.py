"""A training script with parameter servers of TensorFlow: every worker moves two numbers towards a sum.

velodrome train --script script_servers.py --engine tensorflow --workers 2 --servers 1 --script-args \
    "--job_name={role} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}"
"""

import argparse
import json
import os
import time

import tensorflow as tf

import velodrome

v1 = tf.compat.v1
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
cluster, task = config.get("cluster", {}), config.get("task", {})

# Without these arguments, TF_CONFIG says the same.
parser = argparse.ArgumentParser()
parser.add_argument("--job_name", choices=["ps", "worker"], default=task.get("type", "worker"))
parser.add_argument("--task_index", type=int, default=task.get("index", 0))
parser.add_argument("--ps_hosts", default=",".join(cluster.get("ps", [])), help="addresses, separated by commas")
parser.add_argument("--worker_hosts", default=",".join(cluster.get("worker", [])), help="addresses, too")
parser.add_argument("--iterations", type=int, default=60, help="of all workers together: each does its share")
parser.add_argument("--each", type=int, help="iterations of every worker, however many there are")
parser.add_argument("--pause", type=float, default=0.01, help="seconds that a worker sleeps in an iteration")
parser.add_argument("--rate", type=float, default=0.0002, help="share of the distance that an iteration covers")
parser.add_argument("--sum", type=float, default=100.0, help="where the numbers are to go")
parser.add_argument("--asynchronous", action="store_true", help="do not wait for the others in every iteration")
options = parser.parse_args()

hosts = {"ps": options.ps_hosts.split(","), "worker": options.worker_hosts.split(",")}
server = tf.distribute.Server(tf.train.ClusterSpec(hosts), job_name=options.job_name, task_index=options.task_index)
if options.job_name == "ps":
    server.join()  # never returns

workers, me = len(hosts["worker"]), options.task_index
is_chief = me == 0

with v1.Graph().as_default():
    # Variables take turns on the servers, and operations are of this worker.
    with v1.device(v1.train.replica_device_setter(worker_device=f"/job:worker/task:{me}", cluster=hosts)):
        first = v1.get_variable("first", initializer=tf.random.uniform([2], -1.0, 1.0, seed=1))
        second = v1.get_variable("second", initializer=tf.random.uniform([2], -1.0, 1.0, seed=2))
        total = first + second
        # The gradient of half the squared distance, a half of it for each of the summands.
        move = options.rate / 2 * (options.sum - total)
        update = tf.group(v1.assign_add(first, move, use_locking=True), v1.assign_add(second, move, use_locking=True))

    # A queue for each worker, on the first server. Whoever arrives puts a token into all of them, and leaves when there
    # is a token of everybody in his own.
    with tf.device("/job:ps/task:0"):
        queues = [tf.queue.FIFOQueue(-1, [tf.int32], shapes=[()], shared_name=f"arrived-{one}")
                  for one in range(workers)]
        arrive = tf.group(*(queue.enqueue(1) for queue in queues))
        leave = queues[me].dequeue_many(workers)
    initialize, missing = v1.global_variables_initializer(), v1.report_uninitialized_variables()

    # Without filters, a session would wait for all other workers, and again when one of them has gone.
    filters = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{me}"])
    with v1.Session(server.target, config=filters) as session:

        def meet():
            session.run(arrive)
            session.run(leave)

        if is_chief:
            session.run(initialize)
        while len(session.run(missing)):
            time.sleep(0.05)
        meet()  # all begin at the same time

        iterations = options.each or max(1, options.iterations // workers)
        velodrome.log(step=0, total_steps=iterations)
        began = time.perf_counter()
        for iteration in range(iterations):
            session.run(update)
            time.sleep(options.pause)
            if not options.asynchronous:
                meet()
            if (iteration + 1) % 10 == 0 or iteration + 1 == iterations:
                done = 10 if (iteration + 1) % 10 == 0 else iterations % 10
                velodrome.log(step=iteration + 1, examples=done)
        seconds = time.perf_counter() - began

        meet()  # the sums of all
        reached = session.run(total)
        print(f"{reached} after {iterations} iterations of each of {workers} workers, {seconds:.2f} s", flush=True)
        velodrome.log(split="test", distance=abs(options.sum - reached).mean() / options.sum)
