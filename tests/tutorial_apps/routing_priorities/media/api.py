"""What the web side of it sends."""

from datetime import datetime, timedelta, timezone

from .tasks import import_feed, publish, resize


def on_upload(path):
    resize.apply_async((path, 640), priority=8)
    resize.apply_async(args=[path, 64], queue="images", routing_key="image.resize", priority=0)


def on_new_feed(url):
    import_feed.apply_async(args=[url], countdown=10, expires=120)
    import_feed.apply_async(
        args=[url],
        queue="feeds",
        routing_key="feed.import",
        retry=True,
        retry_policy={"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2},
    )


def on_schedule(post_id):
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    publish.apply_async((post_id,), eta=tomorrow, expires=tomorrow + timedelta(days=2))
