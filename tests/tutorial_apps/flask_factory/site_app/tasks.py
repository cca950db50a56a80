import time

from celery import shared_task


@shared_task(ignore_result=False)
def sum_up(a, b):
    return a + b


@shared_task()
def wait_a_bit():
    time.sleep(5)


@shared_task(bind=True, ignore_result=False)
def copy_rows(self, count):
    for row in range(count):
        self.update_state(state="PROGRESS", meta={"row": row + 1, "of": count})
    return {"row": count, "of": count}
