from celery import shared_task


@shared_task
def rename_product(product_id, title):
    return {"product": product_id, "title": title}


@shared_task(ignore_result=True)
def rebuild_search_index():
    return None
